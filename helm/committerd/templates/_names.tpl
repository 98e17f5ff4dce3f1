{{/*
What everything is called: at most 40 characters, so that a dataset's name fits behind it. Begins with a letter, as a
Service's name must, and has only characters that Kubernetes takes, whatever the release and the overrides are called.
*/}}
{{- define "committerd.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $both := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- $plain := default $both .Values.fullnameOverride | lower -}}
{{- $slug := regexReplaceAll "[^a-z0-9]+" $plain "-" | trimAll "-" -}}
{{- ternary $slug (printf "committerd-%s" $slug) (regexMatch "^[a-z]" $slug) | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{/*
The datasets as a JSON list, from `datasets`: a list, or a map whose keys are the names of entries that name nothing else.
Several values files can add to a map, and null takes an entry away.
*/}}
{{- define "committerd.datasets" -}}
{{- $listed := list -}}
{{- if kindIs "map" .Values.datasets -}}
{{- range $name, $dataset := .Values.datasets -}}
{{- if $dataset }}{{ $listed = append $listed (merge (dict) $dataset (dict "name" $name)) }}{{ end -}}
{{- end -}}
{{- else -}}
{{- $listed = default list .Values.datasets -}}
{{- end -}}
{{- toJson $listed -}}
{{- end }}

{{/*
The settings of a group as JSON, from (dict "root" $ "name" $group). Its processes share the datasets out in one consumer
group, which no other release has, unless settings.kafka.group names another. Where `settings` does not say otherwise, an
idle table costs less than by committerd's own defaults: it is looked at less often, because each look is two requests to
the store or more, and its outcomes topic has a single partition.
*/}}
{{- define "committerd.groupSettings" -}}
{{- $group := get (default dict .root.Values.groups) .name | default dict -}}
{{- $called := printf "committerd.%s.%s-group-%s" .root.Release.Namespace (include "committerd.fullname" .root) .name -}}
{{- $usual := dict "kafka" (dict "outcome_partitions" 1) "store" (dict "recheck_seconds" 60) "maintain" (dict "interval_seconds" 300 "cleanup_seconds" 3600) -}}
{{- range $part, $settings := $usual -}}
{{- range $key := keys $settings -}}
{{- if hasKey (get $.root.Values.settings $part | default dict) $key }}{{ $_ := unset $settings $key }}{{ end -}}
{{- end -}}
{{- end -}}
{{- $_ := set $usual.kafka "group" $called -}}
{{- list $usual (default dict $group.settings) | include "committerd.layered" -}}
{{- end }}

{{/*
A dataset as a process of its own would serve it, as JSON: one of a group has the group's Pods and settings, with its own
on top. From (dict "root" $ "dataset" $dataset).
*/}}
{{- define "committerd.whole" -}}
{{- $group := get (default dict .root.Values.groups) (default "" .dataset.group) -}}
{{- if $group -}}
{{- $shared := include "committerd.groupSettings" (dict "root" .root "name" .dataset.group) | fromJson -}}
{{- $settings := list $shared (default dict .dataset.settings) | include "committerd.layered" | fromJson -}}
{{- merge (dict "settings" $settings) (omit .dataset "settings") (omit $group "settings" "maintenance") | toJson -}}
{{- else -}}
{{- toJson .dataset -}}
{{- end -}}
{{- end }}

{{/*
What has Deployments, as a JSON list from the root: each dataset without a group, and each group that has datasets
(`members`), with the names group-NAME and the keys of a dataset. The settings file of a group lies in a ConfigMap.
*/}}
{{- define "committerd.served" -}}
{{- $root := . -}}
{{- $served := list -}}
{{- $members := dict -}}
{{- range $dataset := include "committerd.datasets" . | fromJsonArray -}}
{{- if $dataset.group -}}
{{- $_ := set $members $dataset.group (append (get $members $dataset.group | default list) $dataset) -}}
{{- else -}}
{{- $served = append $served $dataset -}}
{{- end -}}
{{- end -}}
{{- range $name, $datasets := $members -}}
{{- $settings := include "committerd.groupSettings" (dict "root" $root "name" $name) | fromJson -}}
{{- $about := dict "name" (printf "group-%s" $name) "members" $datasets "settings" $settings -}}
{{- $group := merge $about (omit (get (default dict $root.Values.groups) $name | default dict) "settings") -}}
{{- $map := include "committerd.member" (dict "root" $root "dataset" $group) -}}
{{- $volume := dict "name" "datasets" "configMap" (dict "name" $map) -}}
{{- $_ := set $group "extraVolumes" (append (default list $group.extraVolumes) $volume) -}}
{{- $mount := dict "name" "datasets" "mountPath" "/etc/committerd" "readOnly" true -}}
{{- $_ := set $group "extraVolumeMounts" (append (default list $group.extraVolumeMounts) $mount) -}}
{{- $served = append $served $group -}}
{{- end -}}
{{- toJson $served -}}
{{- end }}

{{/* The settings file of a group, from (dict "root" $ "members" $datasets): its datasets, each with settings of its own. */}}
{{- define "committerd.file" -}}
{{- $entries := dict -}}
{{- range $dataset := .members -}}
{{- $entry := merge (pick $dataset "uri" "branch" "aliases") (default dict $dataset.settings) -}}
{{- $queue := include "committerd.queue" $dataset -}}
{{- if ne $queue $dataset.name }}{{ $_ := set $entry "name" $dataset.name }}{{ end -}}
{{- $_ := set $entries $queue $entry -}}
{{- end -}}
{{- dict "datasets" $entries | toToml -}}
{{- end }}

{{/* Those of a group's datasets whose tables are maintained, as a JSON list. From (dict "root" $ "dataset" $group). */}}
{{- define "committerd.maintainedMembers" -}}
{{- $root := .root -}}
{{- $listed := list -}}
{{- range $dataset := .dataset.members -}}
{{- if include "committerd.maintained" (dict "root" $root "dataset" $dataset) }}{{ $listed = append $listed $dataset }}{{ end -}}
{{- end -}}
{{- toJson $listed -}}
{{- end }}

{{/* The branch that a dataset names; empty for the main branch. From the dataset. */}}
{{- define "committerd.branch" -}}
{{- $branch := default "" .branch -}}
{{- ternary "" $branch (eq $branch "main") -}}
{{- end }}

{{/* The name of a dataset's queue, in topics, group and metrics: its own, or that of its branch. From the dataset. */}}
{{- define "committerd.queue" -}}
{{- $branch := include "committerd.branch" . -}}
{{- if $branch }}{{ printf "%s.tree.%s" .name (replace "/" ".." $branch) }}{{ else }}{{ .name }}{{ end -}}
{{- end }}

{{/*
What the objects of a dataset are called, from (dict "root" $ "dataset" $dataset): at most 50 characters, so that names of
Pods fit into a label. A dataset's name that Kubernetes would not take gets a digest, so no two become one.
*/}}
{{- define "committerd.member" -}}
{{- $queue := include "committerd.queue" .dataset -}}
{{- $plain := printf "%s-%s" (include "committerd.fullname" .root) $queue -}}
{{- $slug := regexReplaceAll "[^a-z0-9]+" (lower $plain) "-" | trimAll "-" -}}
{{- if and (eq $slug $plain) (le (len $slug) 50) -}}
{{- $slug -}}
{{- else -}}
{{- printf "%s-%s" (trunc 41 $slug | trimSuffix "-") (sha256sum $queue | trunc 8) -}}
{{- end -}}
{{- end }}

{{/* Members of a dataset: its own number, 0 included, or that of all. From (dict "root" $ "dataset" $dataset). */}}
{{- define "committerd.replicas" -}}
{{- if kindIs "invalid" .dataset.replicas }}{{ int .root.Values.replicas }}{{ else }}{{ int .dataset.replicas }}{{ end -}}
{{- end }}

{{/* A table by one name, from its URI: as producers' URIs are compared. */}}
{{- define "committerd.table" -}}
{{- $plain := regexReplaceAll "^(?i:s3[an]?(?:[+]ddb)?)://" . "s3://" -}}
{{- $plain = regexReplaceAll "^(?i:file(?:-object-store)?)://(localhost)?" $plain "" -}}
{{- regexReplaceAll "[?].*$" $plain "" | trimSuffix "/" -}}
{{- end }}

{{- define "committerd.selectorLabels" -}}
app.kubernetes.io/name: {{ regexReplaceAll "[^A-Za-z0-9_.-]+" (default .Chart.Name .Values.nameOverride) "-" | trunc 63 | trimAll "-_." | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "committerd.labels" -}}
{{ include "committerd.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Labels that select the committers of one dataset; they never change, as a Deployment's selector can't. */}}
{{- define "committerd.memberLabels" -}}
{{ include "committerd.selectorLabels" .root }}
app.kubernetes.io/component: committer
committerd/dataset: {{ include "committerd.member" . }}
{{- end }}

{{- define "committerd.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "committerd.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{- define "committerd.topicsServiceAccountName" -}}
{{- if .Values.topicsJob.serviceAccountName -}}
{{- .Values.topicsJob.serviceAccountName -}}
{{- else if .Values.serviceAccount.create -}}
{{- printf "%s-topics" (include "committerd.fullname" .) -}}
{{- else -}}
{{- include "committerd.serviceAccountName" . -}}
{{- end -}}
{{- end }}

{{/* Whether a dataset's table is maintained: `true`, or nothing. From (dict "root" $ "dataset" $dataset). */}}
{{- define "committerd.maintained" -}}
{{- $own := default dict .dataset.maintenance -}}
{{- if .dataset.members -}}
{{- if include "committerd.maintainedMembers" . | fromJsonArray }}true{{ end -}}
{{- else -}}
{{- if (ternary (get $own "enabled") .root.Values.maintenance.enabled (hasKey $own "enabled")) }}true{{ end -}}
{{- end -}}
{{- end }}

{{/*
When a dataset's CronJob begins: its own schedule, that of all, or hourly at a minute that follows from its name. From
(dict "root" $ "dataset" $dataset).
*/}}
{{- define "committerd.maintenanceSchedule" -}}
{{- $minute := mod (printf "0x%s" (include "committerd.queue" .dataset | sha256sum | trunc 8) | int64) 60 -}}
{{- $own := default dict .dataset.maintenance -}}
{{- $own.schedule | default .root.Values.maintenance.schedule | default (printf "%d * * * *" $minute) -}}
{{- end }}

{{/* Labels that select the Pods that maintain one dataset. */}}
{{- define "committerd.maintenanceLabels" -}}
{{ include "committerd.selectorLabels" .root }}
app.kubernetes.io/component: maintenance
committerd/dataset: {{ include "committerd.member" . }}
{{- end }}

{{/*
Whether a dataset tries what `canary` holds: `true`, or nothing. From (dict "root" $ "dataset" $dataset). By percent it
depends on the dataset's name alone: a larger percentage adds datasets, and a new dataset moves no other.
*/}}
{{- define "committerd.canary" -}}
{{- $queue := ternary (printf "group-%s" .dataset.group) (include "committerd.queue" .dataset) (not (empty .dataset.group)) -}}
{{- $place := mod (printf "0x%s" (sha256sum $queue | substr 8 16) | int64) 100 -}}
{{- if or (has $queue .root.Values.canary.datasets) (lt (int $place) (int .root.Values.canary.percent)) }}true{{ end -}}
{{- end }}

{{/* Tag and digest of a dataset's committers as JSON: the canary's, if it has either, or those of all. */}}
{{- define "committerd.release" -}}
{{- $image := pick .root.Values.image "tag" "digest" -}}
{{- $tried := .root.Values.canary.image -}}
{{- if and (or $tried.tag $tried.digest) (include "committerd.canary" .) }}{{ $image = pick $tried "tag" "digest" }}{{ end -}}
{{- toJson $image -}}
{{- end }}

{{/* The image of a dataset's committers. From (dict "root" $ "dataset" $dataset). */}}
{{- define "committerd.image" -}}
{{- $image := include "committerd.release" . | fromJson -}}
{{- $repository := .root.Values.image.repository -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .root.Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end }}

{{/* The image with pylance for a dataset, of the version of its committers, if `own` (or maintenance.image) gives no other. */}}
{{- define "committerd.maintenanceImage" -}}
{{- $own := .own | default .root.Values.maintenance.image -}}
{{- $repository := default (printf "%s-maintain" .root.Values.image.repository) $own.repository -}}
{{- if $own.digest -}}
{{- printf "%s@%s" $repository $own.digest -}}
{{- else -}}
{{- $image := include "committerd.release" . | fromJson -}}
{{- printf "%s:%s" $repository (default (default .root.Chart.AppVersion $image.tag) $own.tag) -}}
{{- end -}}
{{- end }}

{{/*
Labels of the Pods of one dataset, apart from those that select them. The version is that of the image, not of the chart: a chart
that changes nothing in a Pod must not restart it.
*/}}
{{- define "committerd.podLabels" -}}
{{- $labels := omit (include "committerd.labels" .root | fromYaml) "helm.sh/chart" "app.kubernetes.io/managed-by" -}}
{{- $image := include "committerd.release" . | fromJson -}}
{{- $digest := trimPrefix "sha256:" (default "" $image.digest) | trunc 12 -}}
{{- $version := $image.tag | default $digest | default .root.Chart.AppVersion | trunc 63 | trimAll "-_." -}}
{{- $own := mergeOverwrite (dict) .root.Values.podLabels (default dict .dataset.podLabels) -}}
{{- mergeOverwrite (dict) $labels (dict "app.kubernetes.io/version" $version) $own | toYaml -}}
{{- end }}
