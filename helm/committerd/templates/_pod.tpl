{{/* What Pods may reach: DNS, and what is named. */}}
{{- define "committerd.egress" -}}
- ports:
    - port: 53
      protocol: UDP
    - port: 53
      protocol: TCP
{{ toYaml .Values.networkPolicy.egress }}
{{- end }}

{{/* What all Pods have in common, from (dict "root" $ "dataset" $dataset). */}}
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
      sizeLimit: 64Mi
  {{- with concat .root.Values.extraVolumes (default list .dataset.extraVolumes) }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/*
What all containers have in common. `over` and `extra`: more settings and variables, as for "committerd.env".
*/}}
{{- define "committerd.containerCommon" -}}
image: {{ include "committerd.image" .root | quote }}
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
