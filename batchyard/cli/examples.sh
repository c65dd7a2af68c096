batchyard run -i requests.jsonl -o answers.jsonl --model mini
batchyard run -i reviews.csv -o answers.jsonl --model mini -t 'Is this positive? {text}'
batchyard submit requests.jsonl --wait
batchyard submit reviews.csv -m mini -t 'Is this positive? {text}' --dry-run
batchyard plan requests.jsonl
batchyard plan reviews.csv -m mini -t 'Is this positive? {text}' --rows 50
batchyard plan requests.jsonl -m nano -m mini
batchyard download batch_123 reviews/
batchyard download job_123 rollouts/
batchyard verify reviews/
batchyard verify reviews/ --public-key batchyard.pem
batchyard verify batch_123 --sample 100
batchyard map reviews.csv -m mini -t 'Is this positive? {text}' -o labels.csv
batchyard map tickets.parquet -m mini -t 'Summarize: {*}' -o out.parquet --window 2h
batchyard filter tickets.csv -m large -t 'Is this about billing? {text}' -o billing.csv
batchyard filter tickets.csv -m large -t 'Is this about billing? {text}' --cascade small --recall 0.9 -o billing.csv
batchyard match crm.csv erp.csv -m large -t 'Same company? {left.name} / {right.name}' -o same.csv
batchyard match crm.csv erp.csv -m large -t '{left.name} = {right.name}?' --cascade mini-embed --recall 0.9 -o same.csv
batchyard embed corpus.csv -t text -m mini-embed -o corpus.parquet
batchyard embed corpus.csv -t '{title}: {text}' -m mini-embed -o corpus.npy
batchyard classify reviews.csv -t '{text}' -m mini -l good -l bad -o labels.csv
batchyard classify reviews.csv -t '{text}' -m mini-sentiment -o labels.parquet
batchyard rerank queries.jsonl -m mini-rerank -o ranked.jsonl
batchyard rerank queries.parquet -m mini-rerank --top 3 -o ranked.parquet
batchyard transcribe recordings -m ears -o texts.csv
batchyard transcribe calls.parquet --audio recording -m ears -o texts.parquet
batchyard chat -m mini 'What is 2 + 3?'
batchyard chat -m mini --system 'Answer in one word.'
batchyard demo
batchyard demo --models models.toml
batchyard status
batchyard status batch_123 --watch
batchyard list
batchyard list --status failed --json
batchyard results batch_123 -o answers.jsonl --errors errors.jsonl
batchyard results batch_123 --follow
batchyard top
batchyard top --once
batchyard logs batch_123 --follow
batchyard logs job_123 --since 10m
batchyard open
batchyard open batch_123
batchyard files batch_123
batchyard files --purpose batch_output
batchyard models
batchyard models --json
batchyard models add gemma --engine vllm --source google/gemma-3-4b-it -s engine_args.max_model_len=4096
batchyard models add qwen --engine openai -s 'engine_args.endpoints=[{url = "http://gpu1:8000/v1"}]'
batchyard models set gemma -s max_segments=3 -s engine_args.max_model_len=
batchyard models set gemma -s max_in_flight=64
batchyard models remove gemma
batchyard models remove gemma --json
batchyard models reset gemma
batchyard models reset gemma --json
batchyard models reload
batchyard models reload --json
batchyard models export
batchyard models export > models.toml
batchyard usage --month 2026-11
batchyard usage --by project,key --csv
batchyard usage recompute --since 2026-11-01
batchyard usage recompute --since 2026-11-01 --write
batchyard audit
batchyard audit --limit 500 --json
batchyard eval examples/evaluate.yaml -o answers.jsonl
batchyard eval examples/evaluate.yaml model=nano compare_with=none
batchyard lm-eval --model_args model=mini --tasks my_task --include_path tasks
batchyard lm-eval --model_args model=mini,seed=1 --tasks my_task --include_path tasks
batchyard job create rollout prompts.jsonl -n 4 --model mini --reward exact
batchyard job create refine rows.jsonl -c refine.yaml --wait
batchyard job create generate seeds.jsonl -c generate.yaml
batchyard job create generate seeds.jsonl -c generate.yaml --dry-run
batchyard job create refine rows.jsonl -c refine.yaml --dry-run
batchyard job create rollout prompts.jsonl -c rollout.yaml -n 8
batchyard job create panel panel.jsonl -c panel.yaml
batchyard job create panel panel.jsonl -c panel.yaml --wait
batchyard job create agent tasks.jsonl -c agent.yaml
batchyard job create agent tasks.jsonl -c agent.yaml --wait
batchyard job create evaluate questions.jsonl -c evaluate.yaml
batchyard job create evaluate questions.jsonl -c evaluate.yaml --wait
batchyard job create experiment experiment.yaml
batchyard job create experiment experiment.yaml repeats=3 --wait
batchyard job create tune prompts.jsonl -c tune.yaml
batchyard job create tune prompts.jsonl -c tune.yaml --dry-run
batchyard job create rank passages.jsonl -c rank.yaml
batchyard job create rank passages.jsonl -c rank.yaml top=3
batchyard job create cascade reviews.csv -c cascade.yaml
batchyard job create cascade reviews.csv -c cascade.yaml agree=0.9
batchyard job create batch prompts.jsonl model=mini
batchyard job create batch prompts.jsonl model=mini --window 2h
batchyard job list
batchyard job list --status failed --recipe rollout
batchyard job status job_123 --watch
batchyard job status
batchyard job items job_123 --state stuck
batchyard job items job_123 --custom-id row-7
batchyard job stuck job_123
batchyard job stuck job_123 --json
batchyard job resolve job_123 7 'The right answer'
batchyard job resolve job_123 7 - --by ann
batchyard job requeue job_123 7
batchyard job requeue job_123 7 --hint 'Answer with a number.'
batchyard job verdict job_123 7 --gate tests --passed
batchyard job verdict job_123 7 --gate tests --failed --message 'One test fails.'
batchyard job results job_123 -o results.jsonl
batchyard job results job_123 --artifacts made
batchyard job events job_123
batchyard job events job_123 --json
batchyard job cancel job_123
batchyard job cancel job_123 --json
batchyard job rescore job_123 reward=numeric
batchyard job rescore job_123 reward=numeric --wait
batchyard job retry job_123
batchyard job retry job_123 --state failed -o sampling.temperature=0.2
batchyard config rollout -c numbers.yaml -n 4
batchyard config generate -c generate.yaml sampling.temperature=0.6
batchyard config refine -c refine.yaml
batchyard config refine -c refine.yaml --json
batchyard config rollout -c numbers.yaml --json
batchyard config generate -c generate.yaml --json
batchyard config panel -c panel.yaml
batchyard config panel -c panel.yaml --json
batchyard config agent -c agent.yaml
batchyard config agent -c agent.yaml --json
batchyard config evaluate -c evaluate.yaml
batchyard config evaluate -c evaluate.yaml --json
batchyard config experiment experiment.yaml
batchyard config experiment experiment.yaml --json
batchyard config tune -c tune.yaml
batchyard config tune -c tune.yaml --json
batchyard config rank -c rank.yaml
batchyard config rank -c rank.yaml --json
batchyard config cascade -c cascade.yaml
batchyard config cascade -c cascade.yaml --json
batchyard config batch model=mini
batchyard config batch model=mini --json
batchyard tool list
batchyard tool list --json
batchyard tool call price '{"name": "lamp"}'
batchyard tool call search '{"query": "late trains"}'
batchyard tool add search --url https://mcp.example.com --header 'Authorization=Bearer ${TOKEN}'
batchyard tool add files -- npx -y @modelcontextprotocol/server-filesystem /srv/data
batchyard rollout prompts.jsonl -n 4 --model mini --reward numeric -o samples.parquet
batchyard rollout prompts.jsonl -c rollout.yaml -o samples.parquet --artifacts made
batchyard generate seeds.jsonl -c generate.yaml -o chat.jsonl
batchyard generate seeds.jsonl -c generate.yaml -o chat.jsonl --artifacts made
batchyard refine rows.jsonl -c refine.yaml -o done.jsonl
batchyard refine rows.jsonl -c refine.yaml -o done.jsonl --artifacts made
batchyard panel panel.jsonl -c panel.yaml -o panel.jsonl
batchyard panel tasks.jsonl --model mini --agents DEV,QA -o panel.jsonl
batchyard agent tasks.jsonl -c agent.yaml -o trajectories.parquet
batchyard agent tasks.jsonl -c agent.yaml -o trajectories.parquet --artifacts made
batchyard evaluate questions.jsonl -c evaluate.yaml -o answers.jsonl
batchyard evaluate questions.jsonl -c evaluate.yaml --artifacts made
batchyard experiment experiment.yaml -o results.jsonl
batchyard experiment experiment.yaml repeats=3 --artifacts made
batchyard tune prompts.jsonl --model mini --set engine_args.max_num_seqs=32,64
batchyard tune prompts.jsonl -c tune.yaml --dry-run
batchyard rank passages.jsonl -c rank.yaml -o ranked.jsonl
batchyard rank passages.jsonl -c rank.yaml top=3 -o ranked.jsonl
batchyard cascade reviews.csv -t 'Is this positive? {text}' --model mini --proxy nano -o labels.jsonl
batchyard cascade reviews.csv -c cascade.yaml agree=0.9 -o labels.jsonl
batchyard batch prompts.jsonl model=mini -o answers.jsonl
batchyard batch prompts.jsonl model=mini sampling.temperature=0 -o answers.jsonl
batchyard cancel batch_123
batchyard cancel batch_123 --json
batchyard pause batch_123
batchyard pause job_123
batchyard resume batch_123
batchyard resume job_123
batchyard retry batch_123
batchyard retry batch_123 --fixed corrected.jsonl
batchyard set batch_123 deadline=12h priority=high
batchyard set batch_123 name=nightly
batchyard delete batch_123
batchyard delete job_123
batchyard schedule create --name nightly --cron '0 2 * * *' --file requests.jsonl
batchyard schedule create --name hourly --cron '0 * * * *' --url s3://bucket/in/{{date}}/
batchyard schedule create --name inbox --watch 's3://bucket/in/*.jsonl'
batchyard schedule list
batchyard schedule list --json
batchyard schedule show sched_123
batchyard schedule show sched_123 --json
batchyard schedule pause sched_123
batchyard schedule pause sched_123 --json
batchyard schedule resume sched_123
batchyard schedule resume sched_123 --json
batchyard schedule run sched_123
batchyard schedule run sched_123 --json
batchyard schedule runs sched_123
batchyard schedule runs sched_123 --limit 5
batchyard schedule delete sched_123
batchyard schedule delete sched_123 --json
batchyard webhook create https://example.org/batches
batchyard webhook create https://example.org/batches --event batch.completed
batchyard webhook list
batchyard webhook list --json
batchyard webhook delete wh_123
batchyard webhook delete wh_123 --json
batchyard webhook deliveries wh_123
batchyard webhook deliveries wh_123 --limit 5
batchyard webhook redeliver wh_123 del_123
batchyard webhook redeliver wh_123 del_123 --json
batchyard webhook rotate callback_url
batchyard webhook rotate callback_url --json
batchyard project list
batchyard project list --json
batchyard project set search --tier premium --max-segments 1
batchyard project set search --live-tier flex --cache-bytes 1000000000
batchyard project erase search
batchyard project erase search --yes
batchyard project budget search
batchyard project budget search '100 EUR' --when-exceeded pause
batchyard key create --project search --label ann
batchyard key create --project ops --admin --expires-after 90d
batchyard key list
batchyard key list --project search
batchyard key set key_123 --max-tokens 2000000
batchyard key set key_123 --max-cost "50 EUR"
batchyard key revoke key_123
batchyard key revoke key_123 --json
batchyard key signing create
batchyard key signing create --data /srv/batchyard
batchyard key signing rotate
batchyard key signing rotate --data /srv/batchyard
batchyard key signing show
batchyard key signing show --json
batchyard up
batchyard up --host 0.0.0.0 --port 8000
batchyard doctor
batchyard doctor --start
batchyard doctor --reproducible judge
batchyard backup /backups/monday
batchyard backup /backups/monday --data data
batchyard restore /backups/monday --data restored
batchyard restore /backups/monday --data restored --json
batchyard migrate
batchyard migrate --admin-key
