{{- /* The services of docker-compose.yml: their commands there, and what Kubernetes asks of them.

No liveness probe for Celery's processes: their health check asks over Redis, and while that is away a restart would lose what
runs. The web app's probe is its own health, too: pages and intake go on while a worker is missing, which /readyz tells. */ -}}
{{- define "batchyard.services" -}}
gateway:
  command: [python, -m, batchyard.local.services, gateway, --host=0.0.0.0, --port=8000, "--web=http://{{ include "batchyard.name" . }}-web:8001"]
  port: 8000
  database: true
  probe:
    httpGet: {path: /healthz, port: 8000}
web:
  command: [python, -m, batchyard.local.services, web, --host=0.0.0.0, --port=8001, --behind-gateway]
  port: 8001
  database: true
  probe:
    httpGet: {path: /healthz, port: 8001}
worker:
  # The container ends with either of the two, and is restarted: a node does not outlive its cluster's head.
  command:
    - bash
    - -c
    - |
      ray start --address=$RAY_ADDRESS --num-cpus=0 --num-gpus=0 --disable-usage-stats --block &
      python -m batchyard.local.services worker &
      worker=$!
      trap : TERM
      wait -n
      kill -TERM $worker
      wait $worker
  database: true
  sharedMemory: 1Gi
  celery: true
housekeeper:
  command: [python, -m, batchyard.local.services, housekeeper]
  database: true
  celery: true
  stopSignal: SIGQUIT
webhooks:
  command: [python, -m, batchyard.local.services, webhooks]
  database: true
  celery: true
  stopSignal: SIGQUIT
  # The watchdog of jobs kills its own process, which a container's first process cannot be.
  shareProcessNamespace: true
beat:
  command: [python, -m, batchyard.local.services, beat]
  # It writes its schedule every three minutes.
  probe:
    exec:
      command: [sh, -c, "find /data -maxdepth 1 -name 'beat-schedule*' -mmin -7 | grep -q ."]
flower:
  command: [python, -m, batchyard.local.services, flower, --host=0.0.0.0, --port=5555]
  port: 5555
  # Without it Flower would ask for no password.
  secret: FLOWER_BASIC_AUTH
  probe:
    httpGet: {path: /healthcheck, port: 5555}
{{- end }}
