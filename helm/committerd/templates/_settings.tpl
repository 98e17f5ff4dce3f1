{{/* Layers of settings as JSON, from a list: each wins over the ones before. Not mergeOverwrite: it takes false and 0 for nothing. */}}
{{- define "committerd.layered" -}}
{{- $merged := dict -}}
{{- range $layer := . -}}
{{- range $group, $members := $layer -}}
{{- if not (hasKey $merged $group) }}{{ $_ := set $merged $group dict }}{{ end -}}
{{- range $name, $value := $members }}{{ $_ := set (get $merged $group) $name $value }}{{ end -}}
{{- end -}}
{{- end -}}
{{- toJson $merged -}}
{{- end }}

{{/* The settings as JSON in which a dataset differs from all: those that it tries as a canary, and its own. */}}
{{- define "committerd.ownSettings" -}}
{{- $tried := ternary .root.Values.canary.settings dict (eq (include "committerd.canary" .) "true") -}}
{{- list $tried (default dict .dataset.settings) | include "committerd.layered" -}}
{{- end }}

{{/*
The settings of a dataset as JSON, from (dict "root" $ "dataset" $dataset "over" $more): those of all, the dataset's own,
and `over`.
*/}}
{{- define "committerd.settings" -}}
{{- $merged := dict -}}
{{- if not .dataset.members -}}
{{- $_ := set $merged "dataset" (dict "name" .dataset.name "uri" .dataset.uri) -}}
{{- with include "committerd.branch" .dataset }}{{ $_ := set $merged.dataset "branch" . }}{{ end -}}
{{- with .dataset.aliases }}{{ $_ := set $merged.dataset "aliases" . }}{{ end -}}
{{- end -}}
{{- list $merged .root.Values.settings (include "committerd.ownSettings" . | fromJson) (default dict .over) | include "committerd.layered" -}}
{{- end }}

{{/* A setting as the environment holds it. Helm reads every number as a float, and would print 67108864 as 6.7e+07. */}}
{{- define "committerd.plain" -}}
{{- if kindIs "slice" . -}}
{{- if contains "," (join "" .) }}{{ toJson . }}{{ else }}{{ join "," . }}{{ end -}}
{{- else if and (kindIs "float64" .) (eq (float64 (int64 .)) .) -}}
{{- int64 . -}}
{{- else -}}
{{- toString . -}}
{{- end -}}
{{- end }}

{{/* Environment variables as a list in YAML. What is given by name in extraEnv wins over a setting. */}}
{{- define "committerd.env" -}}
{{- $extra := concat .root.Values.extraEnv (default list .dataset.extraEnv) (default list .extra) -}}
{{- $last := dict -}}
{{- range $index, $entry := $extra }}{{ $_ := set $last $entry.name $index }}{{ end -}}
{{- $env := list -}}
{{- range $group, $members := include "committerd.settings" . | fromJson -}}
{{- range $name, $value := $members -}}
{{- $variable := printf "COMMITTERD_%s__%s" $group $name | upper -}}
{{- if hasKey $last $variable -}}
{{- else if and (kindIs "map" $value) (has $variable (list "COMMITTERD_INGEST__ROUTES" "COMMITTERD_INGEST__READER_OPTIONS")) -}}
{{- $env = append $env (dict "name" $variable "value" (toJson $value)) -}}
{{- else if kindIs "map" $value -}}
{{- $env = append $env (dict "name" $variable "valueFrom" $value) -}}
{{- else if not (kindIs "invalid" $value) -}}
{{- $text := include "committerd.plain" $value -}}
{{- if or (ne $text "") (kindIs "string" $value) -}}
{{- $env = append $env (dict "name" $variable "value" $text) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if .dataset.members -}}
{{- $env = append $env (dict "name" "COMMITTERD_DAEMON__DATASETS_FILE" "value" (printf "/etc/committerd/%s.toml" (.file | default "datasets"))) -}}
{{- end -}}
{{- range $index, $entry := $extra -}}
{{- if eq (get $last $entry.name) $index }}{{ $env = append $env $entry }}{{ end -}}
{{- end -}}
{{- toYaml $env -}}
{{- end }}

{{/* Fails where values contradict each other, with what to do. From (dict "root" $ "dataset" $dataset). */}}
{{- define "committerd.check" -}}
{{- $values := .root.Values -}}
{{- $where := printf "dataset %s" (quote (include "committerd.queue" .dataset)) -}}
{{- $settings := include "committerd.settings" . | fromJson -}}
{{- $given := list -}}
{{- range concat $values.extraEnv (default list .dataset.extraEnv) }}{{ $given = append $given .name }}{{ end -}}
{{- range $name := list "COMMITTERD_DATASET__NAME" "COMMITTERD_DATASET__URI" "COMMITTERD_DATASET__BRANCH" "COMMITTERD_DATASET__ALIASES" -}}
{{- if has $name $given -}}
{{- fail (printf "%s: extraEnv sets %s, so that committers would serve a table that the chart does not know of. Set datasets[].name, uri, branch and aliases, and take the variable away" $where $name) -}}
{{- end -}}
{{- end -}}
{{- range $uri := concat (list .dataset.uri) (default list .dataset.aliases) -}}
{{- /* In URIs of Azure a container stands before the @, as the settings know too. */ -}}
{{- $container := regexMatch "^(abfss?|az|azure|wasbs?)://[^/?#:@]*@[^/?#@]*(/|$)" $uri -}}
{{- if and (regexMatch "^[A-Za-z0-9+.-]+://[^/?#]*@" $uri) (not $container) -}}
{{- fail (printf "%s: uri or aliases hold a user or password (before the @ of a URI, which is not repeated here). Credentials come from a Secret (envFrom) or a role" $where) -}}
{{- end -}}
{{- end -}}
{{- $kafka := default dict $settings.kafka -}}
{{- range $server := default list $kafka.bootstrap_servers -}}
{{- if contains "@" (toString $server) -}}
{{- fail (printf "%s: settings.kafka.bootstrap_servers holds a user or password (before an @, which is not repeated here): give host:port, and a login with sasl_plain_username and sasl_plain_password" $where) -}}
{{- end -}}
{{- end -}}
{{- if or $kafka.session_timeout_ms $kafka.heartbeat_interval_ms -}}
{{- $session := float64 (default 10000 $kafka.session_timeout_ms) -}}
{{- $heartbeat := float64 (default 300 $kafka.heartbeat_interval_ms) -}}
{{- if gt (mulf $heartbeat 3.0) $session -}}
{{- fail (printf "%s: settings.kafka.heartbeat_interval_ms (%v) must be at most a third of settings.kafka.session_timeout_ms (%v)" $where $heartbeat $session) -}}
{{- end -}}
{{- end -}}
{{- $elsewhere := or $values.envFrom .dataset.envFrom -}}
{{- $sasl := hasPrefix "SASL_" (toString $kafka.security_protocol) -}}
{{- if and $sasl (not $kafka.sasl_mechanism) (not $elsewhere) (not (has "COMMITTERD_KAFKA__SASL_MECHANISM" $given)) -}}
{{- fail (printf "%s: settings.kafka.security_protocol %s needs settings.kafka.sasl_mechanism" $where $kafka.security_protocol) -}}
{{- end -}}
{{- if and $kafka.sasl_mechanism (not $sasl) (not $elsewhere) (not (has "COMMITTERD_KAFKA__SECURITY_PROTOCOL" $given)) -}}
{{- fail (printf "%s: settings.kafka.sasl_mechanism needs settings.kafka.security_protocol SASL_SSL or SASL_PLAINTEXT" $where) -}}
{{- end -}}
{{- $servers := get (default dict $settings.kafka) "bootstrap_servers" -}}
{{- $elsewhere := or $values.envFrom .dataset.envFrom (has "COMMITTERD_KAFKA__BOOTSTRAP_SERVERS" $given) -}}
{{- if not (or $servers $elsewhere) -}}
{{- fail (printf "%s: settings.kafka.bootstrap_servers is missing; give brokers as a list of host:port" $where) -}}
{{- end -}}
{{- $drain := float64 $settings.daemon.drain_seconds -}}
{{- $grace := float64 $values.terminationGracePeriodSeconds -}}
{{- if lt $grace (addf $drain 5) -}}
{{- fail (printf "%s: terminationGracePeriodSeconds is %v and settings.daemon.drain_seconds %v: the grace must be at least 5 seconds longer, or Kubernetes kills a commit that is allowed to end" $where $grace $drain) -}}
{{- end -}}
{{- $patience := mulf $values.startupProbe.failureThreshold $values.startupProbe.periodSeconds 1000 -}}
{{- $bootstrap := float64 $settings.kafka.bootstrap_timeout_ms -}}
{{- if le $patience $bootstrap -}}
{{- fail (printf "%s: startupProbe gives up after %v ms (failureThreshold x periodSeconds), before settings.kafka.bootstrap_timeout_ms (%v) is over: raise startupProbe.failureThreshold" $where $patience $bootstrap) -}}
{{- end -}}
{{- if not (int $settings.http.port) -}}
{{- fail "settings.http.port is 0: probes and Prometheus need a port that is known, such as 9464" -}}
{{- end -}}
{{- $volumes := concat $values.extraVolumes (default list .dataset.extraVolumes) -}}
{{- if and (not $volumes) (not (regexMatch "^(s3([+]ddb|a|n)?|az|azure|abfss|gs)://" (lower .dataset.uri))) -}}
{{- fail (printf "%s: %s lies on a file system, and the Pods have none: mount one with extraVolumes and extraVolumeMounts, or give a URI with s3://, az://, abfss:// or gs://" $where .dataset.uri) -}}
{{- end -}}
{{- end }}

{{/* Fails where a dataset of a group has what belongs to the group, or to no group. From (dict "root" $ "dataset" $dataset). */}}
{{- define "committerd.checkGroup" -}}
{{- $where := printf "dataset %s" (quote (include "committerd.queue" .dataset)) -}}
{{- if .dataset.group -}}
{{- if not (hasKey (default dict .root.Values.groups) .dataset.group) -}}
{{- fail (printf "%s: group %s is not in `groups`: %s" $where (quote .dataset.group) (keys (default dict .root.Values.groups) | sortAlpha | join ", ")) -}}
{{- end -}}
{{- range $key := omit .dataset "name" "uri" "branch" "aliases" "group" "owner" "settings" "maintenance" | keys | sortAlpha -}}
{{- fail (printf "%s: %s belongs to its Pods, which are those of group %s: set groups.%s.%s, or take the dataset out of the group" $where $key (quote $.dataset.group) $.dataset.group $key) -}}
{{- end -}}
{{- range $key := omit (default dict .dataset.maintenance) "enabled" | keys | sortAlpha -}}
{{- fail (printf "%s: maintenance.%s belongs to its process, which is that of group %s: set groups.%s.maintenance.%s, or take the dataset out of the group" $where $key (quote $.dataset.group) $.dataset.group $key) -}}
{{- end -}}
{{- range $group, $members := default dict .dataset.settings -}}
{{- if not (has $group (list "commit" "memory" "maintain" "store" "s3" "dynamodb" "azure" "gcs")) -}}
{{- fail (printf "%s: settings.%s is the same for all datasets of a process: set groups.%s.settings.%s, or take the dataset out of the group" $where $group $.dataset.group $group) -}}
{{- end -}}
{{- range $name, $value := $members -}}
{{- if kindIs "map" $value -}}
{{- fail (printf "%s: settings.%s.%s comes from a Secret, and the settings of a dataset of a group lie in a ConfigMap: set groups.%s.settings.%s.%s, or take the dataset out of the group" $where $group $name $.dataset.group $group $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}
