{{- define "mens.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "mens.secretName" -}}
{{- default (printf "%s-secret" (include "mens.fullname" .)) .Values.secret.existing -}}
{{- end -}}

{{- define "mens.serviceAccountName" -}}
{{- default (ternary (include "mens.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{- /* What is served: {"models": [{"base", "name", "fullname", and every setting of `serving` that the entry does not have}]}. */ -}}
{{- define "mens.models" -}}
{{- $models := list -}}
{{- $names := list -}}
{{- $bases := list -}}
{{- range .Values.catalog.bases -}}{{- $bases = append $bases .name -}}{{- end -}}
{{- range .Values.serving.models -}}
{{- if not (has .base $bases) -}}
{{- fail (printf "serving.models: the catalog does not contain the base model %s; it has %s" .base (join ", " $bases)) -}}
{{- end -}}
{{- $name := default (.base | lower | replace "." "-" | replace "_" "-" | replace "/" "-") .name -}}
{{- if has $name $names -}}
{{- fail (printf "serving.models: two entries are named %s; give one of them another name" $name) -}}
{{- end -}}
{{- $names = append $names $name -}}
{{- $fullname := printf "%s-serving-%s" (include "mens.fullname" $) $name -}}
{{- if gt (len $fullname) 63 -}}
{{- fail (printf "serving.models: %s is longer than the 63 characters that a Service's name may have; give %s a shorter name" $fullname .base) -}}
{{- end -}}
{{- $model := omit $.Values.serving "models" "urls" -}}
{{- range $key, $value := . -}}{{- $_ := set $model $key $value -}}{{- end -}}
{{- $_ := set $model "name" $name -}}
{{- $_ := set $model "fullname" $fullname -}}
{{- $models = append $models $model -}}
{{- end -}}
{{- toJson (dict "models" $models) -}}
{{- end -}}

{{- /* Where the replicas are, as settings: one by its Service's URL, several by the Service's addresses. Each says itself which base it serves. */ -}}
{{- define "mens.servingPlaces" -}}
{{- $place := printf "%s-serving:8001" (include "mens.fullname" .) -}}
{{- $urls := .Values.serving.urls -}}
{{- $replicas := 0 -}}
{{- range (include "mens.models" . | fromJson).models -}}
{{- $replicas = add $replicas .replicas -}}
{{- end -}}
{{- if eq (int $replicas) 1 -}}
{{- $urls = prepend $urls (printf "http://%s" $place) -}}
{{- end -}}
{{- $settings := dict "MENS_SERVING_URLS" (join "," $urls) -}}
{{- if gt (int $replicas) 1 -}}
{{- $_ := set $settings "MENS_SERVING_DNS" $place -}}
{{- end -}}
{{- toJson $settings -}}
{{- end -}}

{{- /* The helpers below take a tier: dict "root" $ "component" NAME "image" REPOSITORY "values" VALUES
       "secrets" (list of keys) "env" (dict of tier settings) "gpu" BOOL "private" (a folder that is this pod's alone)
       "kernels" BOOL (it compiles some) "readOnlyData" BOOL "model" (of a tier with a Deployment for each base model: the name of this one). */ -}}

{{- define "mens.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- with .model }}
mens/model: {{ . }}
{{- end }}
{{- end -}}

{{- /* An object's metadata; "name" only where it is not the release's name and the component. */ -}}
{{- define "mens.meta" -}}
name: {{ default (printf "%s-%s" (include "mens.fullname" .root) .component) .name }}
labels:
  {{- include "mens.selector" . | nindent 2 }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .root.Release.Service }}
  helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end -}}

{{- /* A pod's metadata; the checksum makes a changed catalogue or secret roll the pods. */ -}}
{{- define "mens.podMeta" -}}
labels:
  {{- include "mens.selector" . | nindent 2 }}
annotations:
  mens/checksum: {{ list .root.Values.catalog .root.Values.secret | toJson | sha256sum }}
{{- end -}}

{{- /* Service links would set MENS_SERVING_PORT=tcp://… in every pod, for the Service is called mens-serving. */ -}}
{{- define "mens.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- end -}}

{{- /* The volume of /var/lib/mens: shared by all tiers, or, with a bucket, this pod's own. */ -}}
{{- define "mens.dataVolume" -}}
{{- $s3 := .Values.storage.s3 -}}
{{- if not $s3.bucket -}}
persistentVolumeClaim:
  claimName: {{ default (printf "%s-data" (include "mens.fullname" .)) .Values.storage.existingClaim }}
{{- else if $s3.localClassName -}}
ephemeral:
  volumeClaimTemplate:
    spec:
      accessModes: [ReadWriteOnce]
      storageClassName: {{ $s3.localClassName }}
      resources:
        requests:
          storage: {{ $s3.localSize }}
{{- else -}}
emptyDir:
  sizeLimit: {{ $s3.localSize }}
{{- end -}}
{{- end -}}

{{- /* The bucket, as settings. */ -}}
{{- define "mens.bucket" -}}
{{- $settings := dict -}}
{{- with .Values.storage.s3 -}}
{{- if .bucket -}}
{{- $settings = dict
      "MENS_S3_BUCKET" .bucket
      "MENS_S3_PREFIX" .prefix
      "MENS_S3_ENDPOINT" .endpoint
      "MENS_S3_REGION" .region
      "MENS_S3_PATH_STYLE" .pathStyle
      "MENS_CACHE_BYTES" (int64 .cacheBytes | toString) -}}
{{- end -}}
{{- end -}}
{{- toJson $settings -}}
{{- end -}}

{{- define "mens.pod" -}}
serviceAccountName: {{ include "mens.serviceAccountName" .root }}
{{ include "mens.podSecurity" .root }}
{{- with .values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- range $key := list "nodeSelector" "tolerations" "affinity" }}
{{- with index $.values $key }}
{{ $key }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- with .values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  - {{- toYaml . | nindent 4 }}
    labelSelector:
      matchLabels:
        {{- include "mens.selector" $ | nindent 8 }}
  {{- end }}
{{- end }}
volumes:
  - name: tmp
    emptyDir: {}
  - name: data
    {{- include "mens.dataVolume" .root | nindent 4 }}
  - name: catalog
    configMap:
      name: {{ include "mens.fullname" .root }}-catalog
  {{- with .root.Values.baseModels.existingClaim }}
  - name: models
    persistentVolumeClaim:
      claimName: {{ . }}
      readOnly: true
  {{- end }}
  {{- if .private }}
  - name: private
    emptyDir: {}
  {{- end }}
  {{- if .kernels }}
  - name: kernels
    emptyDir: {}
  {{- end }}
  {{- if .gpu }}
  - name: shm
    emptyDir:
      medium: Memory
  {{- end }}
{{- end -}}

{{- define "mens.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end -}}

{{- define "mens.image" -}}
image: "{{ .image }}:{{ default .root.Chart.AppVersion .root.Values.image.tag }}"
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
{{- end -}}

{{- define "mens.secretEnv" -}}
{{- range .secrets }}
- name: {{ . }}
  valueFrom:
    secretKeyRef:
      name: {{ $.secretName }}
      key: {{ . }}
{{- end }}
{{- end -}}

{{- /* Requests and limits with each quantity as text: Kubernetes 1.20 applies no numbers on the server's side. */ -}}
{{- define "mens.resources" -}}
{{- $texts := dict -}}
{{- range $kind, $quantities := . -}}
{{- $of := dict -}}
{{- range $name, $quantity := $quantities -}}
{{- if not (kindIs "invalid" $quantity) -}}
{{- $_ := set $of $name (toString $quantity) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $texts $kind $of -}}
{{- end -}}
{{- toYaml $texts -}}
{{- end -}}

{{- define "mens.container" -}}
{{ include "mens.image" . }}
{{ include "mens.containerSecurity" . }}
resources:
  {{- include "mens.resources" .values.resources | nindent 2 }}
env:
  - name: MENS_HOME
    value: /var/lib/mens
  - name: MENS_STORAGE_DIR
    value: /var/lib/mens/storage
  - name: MENS_RUNS_DIR
    value: /var/lib/mens/runs
  - name: MENS_CATALOG_PATH
    value: /etc/mens/catalog.json
  - name: HF_HOME
    value: /var/lib/mens/hub
  - name: MENS_DRAIN_SECONDS
    value: {{ .root.Values.drainSeconds | quote }}
  {{- range $name, $value := merge (include "mens.bucket" .root | fromJson) .env }}
  - name: {{ $name }}
    value: {{ $value | quote }}
  {{- end }}
  {{- $secrets := .secrets }}
  {{- if and .root.Values.storage.s3.bucket .root.Values.storage.s3.accessKeys }}
  {{- $secrets = concat $secrets (list "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY") }}
  {{- end }}
  {{- if .root.Values.metrics.enabled }}
  {{- $secrets = append $secrets "MENS_METRICS_KEY" }}
  - name: MENS_METRICS_HOST
    value: 0.0.0.0
  - name: MENS_METRICS_PORT
    value: "9100"
  {{- end }}
  {{- include "mens.secretEnv" (dict "secrets" $secrets "secretName" (include "mens.secretName" .root)) | trim | nindent 2 }}
  {{- with .values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
volumeMounts:
  - name: tmp
    mountPath: /tmp
  - name: data
    mountPath: /var/lib/mens
    {{- if .readOnlyData }}
    readOnly: true
    {{- end }}
  - name: catalog
    mountPath: /etc/mens
    readOnly: true
  {{- if .root.Values.baseModels.existingClaim }}
  - name: models
    mountPath: /models
    readOnly: true
  {{- end }}
  {{- with .private }}
  - name: private
    mountPath: {{ . }}
  {{- end }}
  {{- if .kernels }}
  - name: kernels
    mountPath: /var/cache/mens
  {{- end }}
  {{- if .gpu }}
  - name: shm
    mountPath: /dev/shm
  {{- end }}
{{- end -}}

{{- /* The port of a pod's metrics; a replica's are where it serves. */ -}}
{{- define "mens.metricsPort" -}}
{{- if .Values.metrics.enabled }}
- name: metrics
  containerPort: 9100
{{- end }}
{{- end -}}

{{- /* Startup, liveness and readiness over HTTP: dict "port" "ready" PATH "startSeconds" N. */ -}}
{{- define "mens.httpProbes" -}}
startupProbe:
  httpGet: {path: /health, port: {{ .port }}}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: {{ div .startSeconds 5 }}
livenessProbe:
  httpGet: {path: /health, port: {{ .port }}}
  periodSeconds: 20
  timeoutSeconds: 10
  failureThreshold: 6
readinessProbe:
  httpGet: {path: {{ .ready }}, port: {{ .port }}}
  periodSeconds: 10
  timeoutSeconds: 5
{{- end -}}

{{- /* Celery answers through the broker, so liveness tolerates ten minutes without a broker.
       There is no readiness probe: no Service points here, and a started worker is a ready one. */ -}}
{{- define "mens.celeryProbes" -}}
{{- $ping := printf "exec celery -A worker.app inspect ping --timeout 20 -d %s@$HOSTNAME" .node -}}
startupProbe:
  exec:
    command: [sh, -c, {{ $ping | quote }}]
  periodSeconds: 15
  timeoutSeconds: 60
  failureThreshold: 20
livenessProbe:
  exec:
    command: [sh, -c, {{ $ping | quote }}]
  periodSeconds: 60
  timeoutSeconds: 60
  failureThreshold: 10
{{- end -}}

{{- /* Not empty where KEDA, and not the Deployment, says how many workers there are. */ -}}
{{- define "mens.kedaScales" -}}
{{- if and .Values.worker.autoscaling.enabled (.Capabilities.APIVersions.Has "keda.sh/v1alpha1") -}}
true
{{- end -}}
{{- end -}}
