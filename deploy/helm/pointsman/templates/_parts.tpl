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

{{/* The start waits inside the probe for whatever it needs (a bus, a configuration, an engine): each failed probe is an
     event. A pod that isn't ready after an hour starts again. */}}
{{- define "pointsman.start-probe" -}}
httpGet: {path: "/ready?wait_s=55", port: metrics}
initialDelaySeconds: 5
periodSeconds: 5
timeoutSeconds: 60
failureThreshold: 60
{{- end }}

{{- define "pointsman.probes" -}}
startupProbe: {{- include "pointsman.start-probe" . | nindent 2 }}
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

{{/* Copies stand on different hosts. A constraint by zone beside it would leave nodes without a zone out of the whole
     score, so that is a preference (pointsman.zones). */}}
{{- define "pointsman.spread" -}}
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector: {matchLabels: {app.kubernetes.io/part-of: pointsman}}
  matchLabelKeys: [app.kubernetes.io/name, pod-template-hash]
{{- end }}

{{/* Copies stand in different zones where there are some: {name}. */}}
{{- define "pointsman.zones" -}}
preferredDuringSchedulingIgnoredDuringExecution:
  - weight: 50
    podAffinityTerm:
      topologyKey: topology.kubernetes.io/zone
      labelSelector: {matchLabels: {app.kubernetes.io/name: pointsman-{{ .name }}}}
{{- end }}

{{/* Copies of a service where no autoscaler scales it: {root, service}. */}}
{{- define "pointsman.copies" -}}
{{- $root := .root }}{{- $service := .service }}
{{- if not (kindIs "invalid" $root.Values.replicas) }}{{ $root.Values.replicas }}
{{- else if not (kindIs "invalid" $service.replicas) }}{{ $service.replicas }}
{{- else }}{{ dig "autoscaling" "min" 1 $service }}
{{- end }}
{{- end }}

{{/* "true" where autoscalers are made: `autoscaling.enabled`, or the cluster's own word with `auto`. */}}
{{- define "pointsman.autoscaled" -}}
{{- if eq (toString .Values.autoscaling.enabled) "auto" }}
{{- if .Capabilities.APIVersions.Has "metrics.k8s.io/v1beta1" }}true{{ end }}
{{- else if .Values.autoscaling.enabled }}true{{ end }}
{{- end }}

{{/* What a container asks for: {root, own}. */}}
{{- define "pointsman.resources" -}}
{{- .root.Values.resources | default .own | toYaml }}
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

{{/* Names of the pods in which services run, as a list: {root, services}. Those of the other shape are among them: they
     still serve while they end, after an upgrade to this one. */}}
{{- define "pointsman.pods" -}}
{{- $found := list }}
{{- range .services }}
{{- $found = append $found (printf "pointsman-%s" .) }}
{{- if or (empty $.root.Values.bundle.services) (has . $.root.Values.bundle.services) }}
{{- $found = append $found "pointsman-gateway" }}
{{- end }}
{{- end }}
{{- uniq $found | join ", " }}
{{- end }}

{{/* Refuses an upgrade that removes the Deployment of a service before its new one is ready: Helm deletes what isn't
     rendered any more without waiting. Without a cluster to look into it refuses nothing. */}}
{{- define "pointsman.refuse-a-gap" -}}
{{- $bundle := lookup "apps/v1" "Deployment" .Release.Namespace "pointsman-gateway" }}
{{- range $name, $service := .Values.services }}
{{- $bundled := has $name $.Values.bundle.services }}
{{- $own := lookup "apps/v1" "Deployment" $.Release.Namespace (printf "pointsman-%s" $name) }}
{{- $wasBundled := false }}
{{- if $bundle }}
{{- $wasBundled = has $name (index $bundle.spec.template.spec.containers 0).command }}
{{- end }}
{{- $waits := "" }}
{{- if and $bundled (not $.Values.bundle.beside) $own (not $wasBundled) }}
{{- $waits = "pointsman-gateway" }}
{{- else if and $bundled (not $.Values.bundle.beside) $own (not (dig "status" "readyReplicas" 0 $bundle)) }}
{{- $waits = "pointsman-gateway" }}
{{- else if and $service.enabled (not $bundled) $wasBundled (not (dig "status" "readyReplicas" 0 $own)) }}
{{- $waits = printf "pointsman-%s" $name }}
{{- end }}
{{- if $waits }}
{{- fail (printf "%s would lose its pods before the Deployment %s is ready. Change the shape in two upgrades: first the values with the longer bundle.services, --set bundle.beside=true and --wait, then the new values without it (deploy/README.md)" $name $waits) }}
{{- end }}
{{- end }}
{{- end }}
