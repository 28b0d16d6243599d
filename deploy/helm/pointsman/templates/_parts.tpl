{{/* Labels of an object: {root, name, role}. */}}
{{- define "pointsman.labels" -}}
app.kubernetes.io/name: pointsman-{{ .name }}
app.kubernetes.io/part-of: pointsman
app.kubernetes.io/version: {{ include "pointsman.tag" .root | quote }}
{{- if .role }}
pointsman-role: {{ .role }}
{{- end }}
{{- end }}

{{- define "pointsman.tag" -}}
{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* A value as a setting: whole numbers without an exponent, lists and maps as JSON. */}}
{{- define "pointsman.setting" -}}
{{- if or (kindIs "slice" .) (kindIs "map" .) -}}
{{ toJson . | quote }}
{{- else if and (kindIs "float64" .) (eq . (floor .)) -}}
{{ int64 . | toString | quote }}
{{- else -}}
{{ toString . | quote }}
{{- end }}
{{- end }}

{{/* Settings of a container, from a map in which null is none. */}}
{{- define "pointsman.settings" -}}
{{- range $key, $value := . }}
{{- if not (kindIs "invalid" $value) }}
- {name: {{ $key }}, value: {{ include "pointsman.setting" $value }}}
{{- end }}
{{- end }}
{{- end }}

{{/* Settings of every service. */}}
{{- define "pointsman.environment" -}}
{{- $settings := dict }}
{{- if .Values.nats.enabled }}
{{- $_ := set $settings "POINTSMAN_NATS_URL" (printf "%s://pointsman-nats:4222" (.Values.nats.tls | ternary "tls" "nats")) }}
{{- else }}
{{- $_ := set $settings "POINTSMAN_NATS_URL" (required "nats.url names the servers when nats.enabled is false" .Values.nats.url) }}
{{- end }}
{{- if .Values.nats.tls }}
{{- $_ := set $settings "POINTSMAN_NATS_TLS_CA" "/etc/nats-authority/ca.crt" }}
{{- end }}
{{- if gt (int .Values.nats.servers) 1 }}
{{- $_ := set $settings "POINTSMAN_EVENTS_REPLICAS" .Values.nats.servers }}
{{- $_ := set $settings "POINTSMAN_BUCKETS_REPLICAS" .Values.nats.servers }}
{{- end }}
{{- range $key, $value := mergeOverwrite $settings (.Values.environment | default dict) }}
{{- if not (kindIs "invalid" $value) }}
{{ $key }}: {{ include "pointsman.setting" $value }}
{{- end }}
{{- end }}
{{- end }}

{{/* Pods read their settings when they start: others are other pods. */}}
{{- define "pointsman.settings-annotation" -}}
annotations: {pointsman-environment: {{ include "pointsman.environment" . | sha256sum | trunc 10 | quote }}}
{{- end }}

{{/* Image of a part: {root, name}. */}}
{{- define "pointsman.image" -}}
{{ .root.Values.image.prefix }}pointsman/{{ .name }}:{{ include "pointsman.tag" .root }}
{{- end }}

{{- define "pointsman.pod-security" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "pointsman.container-security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "pointsman.probes" -}}
startupProbe:
  httpGet: {path: /live, port: metrics}
  periodSeconds: 2
  failureThreshold: 30
livenessProbe:
  httpGet: {path: /live, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /ready, port: metrics}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
{{- end }}

{{/* Copies stand on different hosts and in different zones where there are some. */}}
{{- define "pointsman.spread" -}}
{{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
- maxSkew: 1
  topologyKey: {{ . }}
  whenUnsatisfiable: ScheduleAnyway
  labelSelector: {matchLabels: {app.kubernetes.io/part-of: pointsman}}
  matchLabelKeys: [app.kubernetes.io/name]
{{- end }}
{{- end }}

{{/* The authority of the NATS servers, not their key. */}}
{{- define "pointsman.authority-mount" -}}
{name: nats-authority, mountPath: /etc/nats-authority, readOnly: true}
{{- end }}
{{- define "pointsman.authority-volume" -}}
name: nats-authority
secret: {secretName: pointsman-nats-tls, items: [{key: ca.crt, path: ca.crt}]}
{{- end }}

{{/* What the names of a service's own settings begin with: {service, bundled}. */}}
{{- define "pointsman.prefix" -}}
{{ .bundled | ternary (printf "POINTSMAN_%s_" (.service | upper | replace "-" "_")) "POINTSMAN_" }}
{{- end }}

{{/* The bundle as a service: what its services take from the environment and from volumes is added to its own. */}}
{{- define "pointsman.bundle" -}}
{{- $bundle := deepCopy .Values.bundle }}
{{- $env := dict }}
{{- range $member := $bundle.services }}
{{- if not (hasKey $.Values.services $member) }}
{{- fail (printf "bundle.services: %s is none of %s" $member (keys $.Values.services | sortAlpha | join ", ")) }}
{{- end }}
{{- $prefix := include "pointsman.prefix" (dict "service" $member "bundled" true) }}
{{- $service := get $.Values.services $member }}
{{- range $key, $value := $service.env }}
{{- $_ := set $env (regexReplaceAll "^POINTSMAN_" $key $prefix) $value }}
{{- end }}
{{- range list "envFrom" "volumes" "volumeMounts" }}
{{- $_ := set $bundle . (concat (get $bundle .) (get $service .) | uniq) }}
{{- end }}
{{- end }}
{{- $command := prepend $bundle.services "pointsman-bundle" }}
{{- mergeOverwrite $bundle (dict "members" $bundle.services "image" "bundle" "command" $command "env" (mergeOverwrite $env $bundle.env)) | toYaml }}
{{- end }}

{{/* Names of the pods in which services run, as a list: {root, services}. */}}
{{- define "pointsman.pods" -}}
{{- $found := list }}
{{- range .services }}
{{- $found = append $found (has . $.root.Values.bundle.services | ternary "pointsman-gateway" (printf "pointsman-%s" .)) }}
{{- end }}
{{- uniq $found | join ", " }}
{{- end }}
