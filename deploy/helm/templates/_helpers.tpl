{{/* Names and labels. The argument of those of a component is (dict "root" $ "component" "receiver"). */}}
{{- define "megatron-monitor.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "megatron-monitor.fullname" -}}
{{- $name := include "megatron-monitor.name" . }}
{{- $full := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) }}
{{- .Values.fullnameOverride | default $full | trunc 50 | trimSuffix "-" }}
{{- end }}

{{/* The monitor has the name of the release; the others have a suffix. */}}
{{- define "megatron-monitor.component" -}}
{{- include "megatron-monitor.fullname" .root }}{{ if ne .component "monitor" }}-{{ .component }}{{ end }}
{{- end }}

{{- define "megatron-monitor.selector" -}}
{{- $labels := dict "app.kubernetes.io/name" (include "megatron-monitor.name" .root) "app.kubernetes.io/instance" .root.Release.Name }}
{{- with .component }}{{ $_ := set $labels "app.kubernetes.io/component" . }}{{ end }}
{{- toJson $labels }}
{{- end }}

{{- define "megatron-monitor.labels" -}}
{{- $chart := printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- dict "helm.sh/chart" $chart "app.kubernetes.io/version" .root.Chart.AppVersion "app.kubernetes.io/managed-by" .root.Release.Service
    | merge (include "megatron-monitor.selector" . | fromJson) | toJson }}
{{- end }}

{{/* metadata of an object; labels and annotations: those of its own. */}}
{{- define "megatron-monitor.metadata" -}}
{{- $labels := merge (deepCopy (.labels | default dict)) (include "megatron-monitor.labels" . | fromJson) }}
{{- $name := .name | default (include "megatron-monitor.component" (dict "root" .root "component" (.component | default "monitor"))) }}
{{- $metadata := dict "name" $name "namespace" .root.Release.Namespace "labels" $labels }}
{{- with .annotations }}{{ $_ := set $metadata "annotations" . }}{{ end }}
{{- toJson $metadata }}
{{- end }}

{{/* The parts that are installed: the port of each, its values, and the claim of its volume. */}}
{{- define "megatron-monitor.parts" -}}
{{- $config := .Values.config }}
{{- $kafka := not (empty (dig "kafka" "bootstrap" nil $config)) }}
{{- $port := regexFind "[0-9]+$" $config.listen | int }}
{{- $parts := dict "monitor" (dict "port" "metrics" "number" $port "service" 9843 "access" "ReadWriteOnce"
    "persistence" (and .Values.persistence.enabled (not $kafka) | ternary .Values.persistence nil)) }}
{{- if .Values.receiver.enabled }}
{{- $port = regexFind "[0-9]+$" $config.receiver.listen | int }}
{{- $_ := set $parts "receiver" (dict "port" "receiver" "number" $port "service" 9844 "access" "ReadWriteOnce" "persistence" .Values.receiver.persistence) }}
{{- end }}
{{- if .Values.remediator.enabled }}
{{- $_ := set $parts "remediator" (dict "port" "metrics" "number" 9845 "access" "ReadWriteMany" "persistence" .Values.remediator.persistence) }}
{{- end }}
{{- range $component, $part := $parts }}
{{- with $part.persistence }}
{{- $_ := set $part "claim" (.existingClaim | default (include "megatron-monitor.component" (dict "root" $ "component" $component))) }}
{{- end }}
{{- end }}
{{- toJson $parts }}
{{- end }}

{{- define "megatron-monitor.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (.Values.serviceAccount.create | ternary (include "megatron-monitor.fullname" .) "default") }}
{{- end }}

{{/* A claim by its name; none: an empty directory. */}}
{{- define "megatron-monitor.volume" -}}
{{- if .claim }}{{ dict "name" .name "persistentVolumeClaim" (dict "claimName" .claim) | toJson }}
{{- else }}{{ dict "name" .name "emptyDir" dict | toJson }}{{ end }}
{{- end }}

{{- define "megatron-monitor.probe" -}}
{{- if .tcp }}tcpSocket: {port: {{ .port }}}  # because a probe has neither the password nor a certificate
{{- else }}httpGet: {path: {{ .path | default "/-/healthy" }}, port: {{ .port }}}
{{- end }}
{{- end }}

{{/* The Deployment of a component. Keys of the argument: root, component; container, image, args, env, resources; grace; user; tcp, ready;
     nodeSelector, affinity; volumes (name, claim, path, readOnly); extraVolumes, extraVolumeMounts; replicas, strategy. */}}
{{- define "megatron-monitor.deployment" -}}
{{- $values := .root.Values }}
{{- $part := get (include "megatron-monitor.parts" .root | fromJson) .component }}
{{- $config := include "megatron-monitor.fullname" .root }}
apiVersion: apps/v1
kind: Deployment
metadata: {{ include "megatron-monitor.metadata" . }}
spec:
  replicas: {{ .replicas | default 1 }}
  strategy: {type: {{ .strategy | default "Recreate" }}}
  selector:
    matchLabels: {{ include "megatron-monitor.selector" . }}
  template:
    metadata:
      labels: {{ include "megatron-monitor.labels" . }}
      # A changed configuration restarts the pod.
      annotations: {{ merge (dict "checksum/config" (toYaml $values.config | sha256sum)) ($values.podAnnotations | default dict) | toJson }}
    spec:
      {{- range $key, $value := dict "imagePullSecrets" $values.imagePullSecrets "priorityClassName" $values.priorityClassName
          "nodeSelector" .nodeSelector "affinity" .affinity "tolerations" $values.tolerations "terminationGracePeriodSeconds" .grace }}
      {{- if $value }}
      {{ $key }}: {{ toJson $value }}
      {{- end }}
      {{- end }}
      serviceAccountName: {{ include "megatron-monitor.serviceAccount" .root }}
      automountServiceAccountToken: false
      enableServiceLinks: false
      securityContext:
        runAsNonRoot: true
        {{- with .user }}
        runAsUser: {{ int . }}
        {{- end }}
        fsGroup: 65532
        fsGroupChangePolicy: OnRootMismatch
      containers:
        - name: {{ .container }}
          image: {{ printf "%s:%s" .image.repository (.image.tag | default .root.Chart.AppVersion) | toJson }}
          imagePullPolicy: {{ $values.image.pullPolicy }}
          args: {{ toJson .args }}
          {{- with .env }}
          env: {{ toJson . }}
          {{- end }}
          ports: [{name: {{ $part.port }}, containerPort: {{ $part.number }}}]
          {{- $probe := include "megatron-monitor.probe" (dict "port" $part.port "tcp" .tcp) }}
          # Five minutes to read a large state.
          startupProbe:
            {{ $probe }}
            periodSeconds: 5
            failureThreshold: 60
          livenessProbe:
            {{ $probe }}
            periodSeconds: 20
            timeoutSeconds: 5
          readinessProbe:
            {{ include "megatron-monitor.probe" (dict "port" $part.port "tcp" .tcp "path" .ready) }}
            periodSeconds: 5
          resources: {{ toJson .resources }}
          securityContext:
            readOnlyRootFilesystem: true
            allowPrivilegeEscalation: false
            capabilities: {drop: [ALL]}
            seccompProfile: {type: RuntimeDefault}
          volumeMounts:
            - {name: config, mountPath: /etc/megatron-monitor, readOnly: true}
            {{- range .volumes }}
            - {{ omit . "claim" | toJson }}
            {{- end }}
            {{- range .extraVolumeMounts }}
            - {{ toJson . }}
            {{- end }}
      volumes:
        - {{ $values.secretConfig | ternary (dict "secret" (dict "secretName" $config)) (dict "configMap" (dict "name" $config)) | merge (dict "name" "config") | toJson }}
        {{- range .volumes }}
        - {{ include "megatron-monitor.volume" . }}
        {{- end }}
        {{- range .extraVolumes }}
        - {{ toJson . }}
        {{- end }}
{{- end }}
