{{- define "batchyard.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{- define "batchyard.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* By which policies and Services know the release's pods. KubeRay sets app.kubernetes.io/name itself. */ -}}
{{- define "batchyard.ours" -}}
app.kubernetes.io/part-of: batchyard
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* (list . component) */ -}}
{{- define "batchyard.labels" -}}
{{- include "batchyard.ours" (first .) }}
app.kubernetes.io/component: {{ last . }}
{{- end }}

{{- /* (list . component): metadata of an object, without a pod's. */ -}}
{{- define "batchyard.metadata" -}}
{{- $root := first . -}}
name: {{ include "batchyard.name" $root }}-{{ last . }}
labels:
  helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
  app.kubernetes.io/managed-by: {{ $root.Release.Service }}
  app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
  {{- include "batchyard.labels" . | nindent 2 }}
{{- end }}

{{- define "batchyard.redis" -}}
{{ .Values.redis.url | default (printf "redis://%s-redis:6379/0" (include "batchyard.name" .)) }}
{{- end }}

{{- define "batchyard.database" -}}
{{ .Values.postgresql.url | default (printf "postgresql+psycopg://batchyard@%s-postgresql:5432/batchyard" (include "batchyard.name" .)) }}
{{- end }}

{{- define "batchyard.ray" -}}
{{ .Values.ray.address | default (printf "%s-ray-head:6379" (include "batchyard.name" .)) }}
{{- end }}

{{- /* Variables of every process, Ray's nodes included, as a map. */ -}}
{{- define "batchyard.environment" -}}
{{- range $name, $value := .Values.environment }}
{{ $name }}: {{ $value | quote }}
{{- end }}
HOME: /tmp
BATCHYARD_ALIVE_FILE: /tmp/alive
HF_HOME: {{ ternary "/models/huggingface" "/data/huggingface" (ne .Values.weights.existingClaim "") }}
RAY_AUTH_MODE: {{ .Values.ray.auth }}
RAY_USAGE_STATS_ENABLED: "0"
RAY_idle_worker_killing_time_threshold_ms: "60000"
RAY_worker_niceness: "0"
{{- end }}

{{- /* Those of our services. */ -}}
{{- define "batchyard.settings" -}}
{{ include "batchyard.environment" . }}
BATCHYARD_DATA: /data
BATCHYARD_MODELS: /etc/batchyard/models.toml
REDIS_URL: {{ include "batchyard.redis" . | quote }}
DATABASE_URL: {{ include "batchyard.database" . | quote }}
ARTIFACTS_URL: {{ .Values.artifacts.url | default "file:///data/artifacts" | quote }}
RAY_ADDRESS: {{ include "batchyard.ray" . | quote }}
BATCHYARD_RAY_SHIP_CODE: {{ .Values.ray.shipCode | quote }}
{{- end }}

{{- /* A map of variables as `env`. */ -}}
{{- define "batchyard.env" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{- /* (list . secret…): `envFrom` of those that have a name. */ -}}
{{- define "batchyard.envFrom" -}}
{{- range . }}{{ if . }}
- secretRef:
    name: {{ . }}
{{- end }}{{ end }}
{{- end }}

{{- /* (list . user): fields of every pod. A Service named redis would bring REDIS_PORT and its like with it. */ -}}
{{- define "batchyard.pod" -}}
{{- $root := first . -}}
enableServiceLinks: false
automountServiceAccountToken: false
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: {{ last . }}
  runAsGroup: {{ last . }}
  fsGroup: {{ last . }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{- define "batchyard.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{- define "batchyard.ourContainer" -}}
image: {{ include "batchyard.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{ include "batchyard.container" . }}
{{- end }}

{{- /* What a process may write, and the weights. `sharedMemory` of the second: where Ray keeps objects. */ -}}
{{- define "batchyard.mounts" -}}
- name: tmp
  mountPath: /tmp
- name: data
  mountPath: /data
{{- if (first .).Values.weights.existingClaim }}
- name: weights
  mountPath: /models
{{- end }}
{{- if last . }}
- name: shm
  mountPath: /dev/shm
{{- end }}
{{- end }}

{{- define "batchyard.volumes" -}}
- name: tmp
  emptyDir: {}
- name: data
  emptyDir: {}
{{- with (first .).Values.weights.existingClaim }}
- name: weights
  persistentVolumeClaim:
    claimName: {{ . }}
{{- end }}
{{- with last . }}
- name: shm
  emptyDir:
    medium: Memory
    sizeLimit: {{ . }}
{{- end }}
{{- end }}

{{- /* What cannot be guessed. */ -}}
{{- define "batchyard.checks" -}}
{{- $_ := required "existingSecret is required: the name of a Secret with PGPASSWORD and FLOWER_BASIC_AUTH" .Values.existingSecret }}
{{- $_ = required "models is required: the text of models.toml, as --set-file models=models.toml gives it" .Values.models }}
{{- if and .Values.ray.address .Values.networkPolicy.enabled (not .Values.ray.from) }}
{{- fail "ray.from is required with ray.address: the peers of a NetworkPolicy that are the cluster's nodes, which connect to the worker's (or networkPolicy.enabled=false)" }}
{{- end }}
{{- end }}
