{{/* What Pods may reach: DNS, and what is named. */}}
{{- define "committerd.egress" -}}
- ports:
    - port: 53
      protocol: UDP
    - port: 53
      protocol: TCP
{{ toYaml .Values.networkPolicy.egress }}
{{- end }}

{{/* What all Pods have in common, from (dict "root" $ "dataset" $dataset). `temporary`: the size of /tmp. */}}
{{- define "committerd.podCommon" -}}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
automountServiceAccountToken: {{ .root.Values.automountServiceAccountToken }}
{{- /* A Service named committerd-kafka would otherwise set variables that look like misspelt settings. */}}
enableServiceLinks: false
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
{{- with .dataset.nodeSelector | default .root.Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .dataset.tolerations | default .root.Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
volumes:
  - name: tmp
    emptyDir:
      sizeLimit: {{ .temporary | default "64Mi" }}
  {{- with concat .root.Values.extraVolumes (default list .dataset.extraVolumes) }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/*
What all containers have in common. `over` and `extra`: more settings and variables, as for "committerd.env". `image`:
another image than the committers'.
*/}}
{{- define "committerd.containerCommon" -}}
image: {{ .image | default (include "committerd.image" .) | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  {{- toYaml .root.Values.securityContext | nindent 2 }}
{{- with concat .root.Values.envFrom (default list .dataset.envFrom) }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
env:
  {{- include "committerd.env" . | nindent 2 }}
volumeMounts:
  - name: tmp
    mountPath: /tmp
  {{- with concat .root.Values.extraVolumeMounts (default list .dataset.extraVolumeMounts) }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* The template of a Pod that maintains a dataset. */}}
{{- define "committerd.maintenancePod" -}}
{{- $values := .root.Values.maintenance -}}
{{- $once := eq $values.kind "CronJob" -}}
{{- $labels := include "committerd.podLabels" . | fromYaml -}}
{{- $annotations := mergeOverwrite (dict) .root.Values.podAnnotations (default dict .dataset.podAnnotations) -}}
{{- if .dataset.members -}}
{{- /* Maintenance reads its file at the start. */ -}}
{{- $file := include "committerd.file" (dict "root" .root "members" (include "committerd.maintainedMembers" . | fromJsonArray)) -}}
{{- $_ := set $annotations "committerd/datasets" (sha256sum $file) -}}
{{- end -}}
metadata:
  labels:
    {{- mergeOverwrite (dict) $labels (include "committerd.maintenanceLabels" . | fromYaml) | toYaml | nindent 4 }}
  annotations:
    {{- toYaml (set $annotations "committerd/dataset" (include "committerd.queue" .dataset)) | nindent 4 }}
spec:
  serviceAccountName: {{ .dataset.serviceAccountName | default (include "committerd.serviceAccountName" .root) }}
  terminationGracePeriodSeconds: {{ int $values.terminationGracePeriodSeconds }}
  {{- if $once }}
  restartPolicy: Never
  {{- end }}
  {{- include "committerd.podCommon" . | trim | nindent 2 }}
  {{- with .dataset.affinity | default .root.Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .root.Values.initContainers }}
  initContainers:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: maintenance
      command: {{ ternary "[committerd, maintain, --once]" "[committerd, maintain]" $once }}
      {{- if .dataset.members }}
      args: [--tables, {{ (default dict .dataset.maintenance).tables | default 2 | int | quote }}]
      {{- end }}
      {{- include "committerd.containerCommon" . | nindent 6 }}
      {{- if not $once }}
      ports:
        - name: metrics
          containerPort: {{ (include "committerd.settings" . | fromJson).http.port | int }}
      startupProbe:
        httpGet: {{ include "committerd.httpGet" (list "/livez" .) }}
        {{- toYaml .root.Values.startupProbe | nindent 8 }}
      livenessProbe:
        httpGet: {{ include "committerd.httpGet" (list "/livez" .) }}
        {{- toYaml .root.Values.livenessProbe | nindent 8 }}
      {{- end }}
      resources:
        {{- toYaml ((default dict .dataset.maintenance).resources | default $values.resources) | nindent 8 }}
{{- end }}

{{- /* What a probe asks. Arguments: the path, and the dataset's scope. The kubelet trusts any certificate. */ -}}
{{- define "committerd.httpGet" -}}
{{- $http := (include "committerd.settings" (index . 1) | fromJson).http -}}
{{- dict "path" (index . 0) "port" "metrics" | merge (ternary (dict "scheme" "HTTPS") (dict) (not (empty $http.tls_certfile))) | toJson -}}
{{- end }}
