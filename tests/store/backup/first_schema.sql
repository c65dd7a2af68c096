-- A database with the schema 0032, as a stack left it that was killed: one batch has ended, one runs.
BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0032');
CREATE TABLE api_keys (
	id VARCHAR(64) NOT NULL, 
	project_id VARCHAR(64) NOT NULL, 
	secret_sha256 VARCHAR(64) NOT NULL, 
	admin BOOLEAN NOT NULL, 
	label VARCHAR(128), 
	created_at BIGINT NOT NULL, 
	expires_at BIGINT, 
	last_used_at BIGINT, 
	revoked_at BIGINT, 
	CONSTRAINT pk_api_keys PRIMARY KEY (id), 
	CONSTRAINT fk_api_keys_project_id FOREIGN KEY(project_id) REFERENCES projects (id)
);
INSERT INTO "api_keys" VALUES('06613b03c64a526ea68a13f1171af579','proj_06613b03c6444796da4b1d54a46a4d72','649ffa971c152a3e4aa390296680e44bf7a580a6c19ab1bae6ae2248034d6299',1,'admin.key',1795755954,NULL,1795755968,NULL);
CREATE TABLE appended_ids (
	batch_id VARCHAR(64) NOT NULL, 
	digest BLOB NOT NULL, 
	CONSTRAINT pk_appended_ids PRIMARY KEY (batch_id, digest), 
	CONSTRAINT fk_appended_ids_batch_id FOREIGN KEY(batch_id) REFERENCES batches (id)
);
CREATE TABLE appends (
	id VARCHAR(64) NOT NULL, 
	batch_id VARCHAR(64) NOT NULL, 
	idempotency_key VARCHAR(255), 
	sha256 VARCHAR(64) NOT NULL, 
	bytes BIGINT NOT NULL, 
	requests BIGINT NOT NULL, 
	first_line BIGINT NOT NULL, 
	created_at BIGINT NOT NULL, 
	CONSTRAINT pk_appends PRIMARY KEY (id), 
	CONSTRAINT fk_appends_batch_id FOREIGN KEY(batch_id) REFERENCES batches (id)
);
CREATE TABLE artifacts (
	batch_id VARCHAR(64) NOT NULL, 
	name VARCHAR(128) NOT NULL, 
	file_id VARCHAR(64) NOT NULL, 
	lines BIGINT, 
	CONSTRAINT pk_artifacts PRIMARY KEY (batch_id, name), 
	CONSTRAINT fk_artifacts_batch_id FOREIGN KEY(batch_id) REFERENCES batches (id), 
	CONSTRAINT fk_artifacts_file_id FOREIGN KEY(file_id) REFERENCES files (id)
);
INSERT INTO "artifacts" VALUES('batch_06613b04977785307762ccaaa4c1ab7e','output.jsonl','file-06613b055191b4b1324b1aec6b21a714',4);
INSERT INTO "artifacts" VALUES('batch_06613b04977785307762ccaaa4c1ab7e','manifest.json','file-06613b05528a8b2d78c7bc15ca55935d',NULL);
CREATE TABLE batches (
	id VARCHAR(64) NOT NULL, 
	project_id VARCHAR(64) NOT NULL, 
	name VARCHAR(512), 
	created_by VARCHAR(64), 
	plan_sha256 VARCHAR(64), 
	output_file_id VARCHAR(64), 
	error_file_id VARCHAR(64), 
	idempotency_sha256 VARCHAR(64), 
	endpoint VARCHAR(64) NOT NULL, 
	input_sha256 VARCHAR(64) NOT NULL, 
	completion_window VARCHAR(16) NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	input_file_id VARCHAR(64) NOT NULL, 
	outcome VARCHAR(16), 
	model VARCHAR(256), 
	holder VARCHAR(256), 
	models JSON NOT NULL, 
	post_process JSON NOT NULL, 
	simulated BOOLEAN NOT NULL, 
	created_at BIGINT NOT NULL, 
	expires_at BIGINT NOT NULL, 
	total BIGINT NOT NULL, 
	expired BIGINT NOT NULL, 
	cancelled BIGINT NOT NULL, 
	epoch BIGINT NOT NULL, 
	completed BIGINT NOT NULL, 
	failed BIGINT NOT NULL, 
	input_tokens BIGINT NOT NULL, 
	cached_tokens BIGINT NOT NULL, 
	output_tokens BIGINT NOT NULL, 
	due_at BIGINT DEFAULT '0' NOT NULL, 
	priority BIGINT DEFAULT '0' NOT NULL, 
	attempts BIGINT DEFAULT '0' NOT NULL, 
	shared_requests BIGINT DEFAULT '0' NOT NULL, 
	shared_input_tokens BIGINT DEFAULT '0' NOT NULL, 
	shared_output_tokens BIGINT DEFAULT '0' NOT NULL, 
	out_of_reach BOOLEAN DEFAULT false NOT NULL, 
	sla VARCHAR(16) DEFAULT 'on_track' NOT NULL, 
	in_progress_at BIGINT, 
	finalizing_at BIGINT, 
	completed_at BIGINT, 
	failed_at BIGINT, 
	expired_at BIGINT, 
	cancelling_at BIGINT, 
	cancelled_at BIGINT, 
	output_expires_after BIGINT, 
	paused_at BIGINT, 
	metadata JSON, 
	errors JSON, 
	timeline JSON, 
	latencies JSON, 
	on_invalid VARCHAR(8) DEFAULT 'fail' NOT NULL, 
	planned BOOLEAN DEFAULT 0 NOT NULL, 
	open BOOLEAN DEFAULT 0 NOT NULL, 
	job_id VARCHAR(64), 
	seconds_sha256 VARCHAR(64), 
	rows_sha256 VARCHAR(64), 
	retry_of VARCHAR(64), 
	stage VARCHAR(128), 
	paused_by VARCHAR(128), 
	idempotency_key VARCHAR(255), 
	attempt_error VARCHAR, 
	lease_expires_at DOUBLE, engine_deaths JSON, reasoning_tokens BIGINT DEFAULT '0' NOT NULL, warnings JSON, traceparent VARCHAR(55), cut_off BIGINT DEFAULT '0' NOT NULL, empty BIGINT DEFAULT '0' NOT NULL, invalid BIGINT DEFAULT '0' NOT NULL, sample_rows BIGINT, sample_segments BIGINT, stop_when JSON, refused BIGINT DEFAULT '0' NOT NULL, sampling BOOLEAN DEFAULT 0 NOT NULL, 
	CONSTRAINT pk_batches PRIMARY KEY (id), 
	CONSTRAINT fk_batches_project_id FOREIGN KEY(project_id) REFERENCES projects (id)
);
INSERT INTO "batches" VALUES('batch_06613b04977785307762ccaaa4c1ab7e','proj_06613b03c6444796da4b1d54a46a4d72','ended','06613b03c64a526ea68a13f1171af579','53e87e4ec18fff35f9169a58cfe73f9f8eca2a60029195d6cf36803988147df6','file-06613b055191b4b1324b1aec6b21a714',NULL,NULL,'/v1/chat/completions','d8410ea1ef7ca84abc8794e5fda372bf4169bb82693d56bb3c0c27725a572d13','24h','completed','file-06613b0495a6cd2bdb5278d46cb88d28','completed','echo',NULL,'{"echo": {"name": "echo", "engine": "echo", "source": "", "endpoints": ["/v1/chat/completions", "/v1/completions"], "replicas": 1, "max_replicas": null, "max_segments": 2, "max_in_flight": null, "num_gpus": null, "engine_args": {}, "price": {"currency": "EUR", "input": "1", "cached_input": null, "output": "2", "hour": null}}}','[]',1,1795755968,1795842368,4,0,0,3,4,0,8,0,8,1795842368,0,0,0,0,0,0,'on_track',1795755975,1795755979,1795755980,NULL,NULL,NULL,NULL,NULL,NULL,'{"name": "ended"}',NULL,'[[1795755975.0, 0, 0, 0], [1795755979.8, 4, 16, 0]]','{"echo": {"decode": {"-235": 1, "-300": 1, "-309": 1, "-310": 1}}}','fail',1,0,NULL,'0eb310babbd250bd4b04fb41f07822a645af0203f1ab2da910e46ecb5af025d7','f47dccd44bb840570b294ccbbd7560bcb6f851a4696c997a30b9ca9f834410a4',NULL,NULL,NULL,NULL,NULL,1.79575598052005839348e+09,NULL,0,NULL,NULL,0,0,0,NULL,NULL,NULL,0,0);
INSERT INTO "batches" VALUES('batch_06613b055377917ae6452c98d6e2e9e4','proj_06613b03c6444796da4b1d54a46a4d72','in.jsonl','06613b03c64a526ea68a13f1171af579','7bb968f096381357c8fa9444f3a1addce4715be315a898669523a8a3a3607629',NULL,NULL,NULL,'/v1/chat/completions','d4fda8edad3a959b82d6f14c7a7802d94cdd0aebc17f47004cd7f65055e1b032','24h','in_progress','file-06613b055322d62ce3f381f0d8ab26b6',NULL,'slow',NULL,'{"slow": {"name": "slow", "engine": "echo", "source": "", "endpoints": ["/v1/chat/completions", "/v1/completions"], "replicas": 1, "max_replicas": null, "max_segments": 2, "max_in_flight": 1, "num_gpus": null, "engine_args": {"latency_ms": 400}, "price": null}}','[]',1,1795755980,1795842380,60,0,0,1,6,0,12,0,12,1795842380,0,0,0,0,0,0,'on_track',1795755980,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'null',NULL,NULL,'{"slow": {"decode": {"-23": 2, "-24": 4}}}','fail',1,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1.79575598061798501021e+09,NULL,0,NULL,NULL,0,0,0,NULL,NULL,NULL,0,0);
CREATE TABLE budgets (
	project_id VARCHAR(64) NOT NULL, 
	amount BIGINT NOT NULL, 
	warn_at BIGINT NOT NULL, 
	currency VARCHAR(3) NOT NULL, 
	when_exceeded VARCHAR(8) NOT NULL, 
	notice VARCHAR(32), 
	CONSTRAINT pk_budgets PRIMARY KEY (project_id), 
	CONSTRAINT fk_budgets_project_id FOREIGN KEY(project_id) REFERENCES projects (id)
);
CREATE TABLE cached_answers (
	project_id VARCHAR(64) NOT NULL, 
	"key" VARCHAR(64) NOT NULL, 
	body BLOB NOT NULL, 
	input_tokens BIGINT NOT NULL, 
	cached_tokens BIGINT NOT NULL, 
	output_tokens BIGINT NOT NULL, 
	bytes BIGINT NOT NULL, 
	used_at DOUBLE NOT NULL, batch_id VARCHAR(64), 
	CONSTRAINT pk_cached_answers PRIMARY KEY (project_id, "key"), 
	CONSTRAINT fk_cached_answers_project_id FOREIGN KEY(project_id) REFERENCES projects (id)
);
CREATE TABLE deliveries (
	id VARCHAR(64) NOT NULL, 
	project_id VARCHAR(64) NOT NULL, 
	webhook_id VARCHAR(64) NOT NULL, 
	event_id VARCHAR(64) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	attempts BIGINT NOT NULL, 
	created_at BIGINT NOT NULL, 
	next_attempt_at DOUBLE NOT NULL, 
	status_code BIGINT, 
	delivered_at BIGINT, 
	error VARCHAR, 
	CONSTRAINT pk_deliveries PRIMARY KEY (id), 
	CONSTRAINT fk_deliveries_project_id FOREIGN KEY(project_id) REFERENCES projects (id), 
	CONSTRAINT fk_deliveries_webhook_id FOREIGN KEY(webhook_id) REFERENCES webhooks (id), 
	CONSTRAINT fk_deliveries_event_id FOREIGN KEY(event_id) REFERENCES events (id)
);
CREATE TABLE durations (
	kind VARCHAR(16) NOT NULL, 
	name VARCHAR(256) NOT NULL, 
	variant VARCHAR(256) NOT NULL, 
	number DOUBLE NOT NULL, 
	units DOUBLE NOT NULL, 
	seconds DOUBLE NOT NULL, 
	units_squared DOUBLE NOT NULL, 
	units_seconds DOUBLE NOT NULL, 
	seconds_squared DOUBLE NOT NULL, 
	CONSTRAINT pk_durations PRIMARY KEY (kind, name, variant)
);
INSERT INTO "durations" VALUES('start','echo','163ddf6c22fef5b3b54e64d42cded591b24a80410c4214c3ca26d20adad7078c',1.0,0.0,2.08134194499996283411e+00,0.0,0.0,4.33198429201622836615e+00);
INSERT INTO "durations" VALUES('lead','echo','163ddf6c22fef5b3b54e64d42cded591b24a80410c4214c3ca26d20adad7078c',1.0,0.0,4.59031702801885321818e-02,0.0,0.0,2.10710104177198355446e-03);
INSERT INTO "durations" VALUES('finish','','',1.0,4.0,0.724550724029541,16.0,2.8982028961181640625e+00,5.24973751691732104518e-01);
INSERT INTO "durations" VALUES('lead','slow','9344329139895ac8014a8281919c0d8cb19f9020ff293610b6ac54f72c61edc5',1.0,0.0,3.53323484668999299174e+00,0.0,0.0,1.24837484818644579571e+01);
CREATE TABLE engine_failures (
	model VARCHAR(256) NOT NULL, 
	reason VARCHAR NOT NULL, 
	at BIGINT NOT NULL, 
	requests BIGINT NOT NULL, 
	next VARCHAR(16) NOT NULL, 
	deaths BIGINT NOT NULL, 
	engines JSON NOT NULL, 
	answered BOOLEAN NOT NULL, 
	CONSTRAINT pk_engine_failures PRIMARY KEY (model)
);
CREATE TABLE erased_content (
	sha256 VARCHAR(64) NOT NULL, 
	erased_at DOUBLE NOT NULL, 
	CONSTRAINT pk_erased_content PRIMARY KEY (sha256)
);
CREATE TABLE events (
	id VARCHAR(64) NOT NULL, 
	project_id VARCHAR(64) NOT NULL, 
	batch_id VARCHAR(64), 
	job_id VARCHAR(64), 
	key_id VARCHAR(64), 
	type VARCHAR(64) NOT NULL, 
	key_name VARCHAR(128), 
	data JSON NOT NULL, 
	created_at BIGINT NOT NULL, 
	CONSTRAINT pk_events PRIMARY KEY (id), 
	CONSTRAINT fk_events_project_id FOREIGN KEY(project_id) REFERENCES projects (id), 
	CONSTRAINT fk_events_batch_id FOREIGN KEY(batch_id) REFERENCES batches (id)
);
INSERT INTO "events" VALUES('evt_06613b0497ac1514d539bd71600c5b9d','proj_06613b03c6444796da4b1d54a46a4d72','batch_06613b04977785307762ccaaa4c1ab7e',NULL,'06613b03c64a526ea68a13f1171af579','batch.created','admin.key','{"id": "batch_06613b04977785307762ccaaa4c1ab7e"}',1795755968);
INSERT INTO "events" VALUES('evt_06613b05527216b6c60eca48bbfcc612','proj_06613b03c6444796da4b1d54a46a4d72','batch_06613b04977785307762ccaaa4c1ab7e',NULL,NULL,'batch.completed',NULL,'{"id": "batch_06613b04977785307762ccaaa4c1ab7e"}',1795755980);
INSERT INTO "events" VALUES('evt_06613b05537a18b37edf61a29f31358d','proj_06613b03c6444796da4b1d54a46a4d72','batch_06613b055377917ae6452c98d6e2e9e4',NULL,'06613b03c64a526ea68a13f1171af579','batch.created','admin.key','{"id": "batch_06613b055377917ae6452c98d6e2e9e4"}',1795755980);
CREATE TABLE files (
	id VARCHAR(64) NOT NULL, 
	project_id VARCHAR(64) NOT NULL, 
	filename VARCHAR(512) NOT NULL, 
	purpose VARCHAR(32) NOT NULL, 
	bytes BIGINT NOT NULL, 
	created_at BIGINT NOT NULL, 
	sha256 VARCHAR(64) NOT NULL, 
	expires_at BIGINT, 
	CONSTRAINT pk_files PRIMARY KEY (id), 
	CONSTRAINT fk_files_project_id FOREIGN KEY(project_id) REFERENCES projects (id)
);
INSERT INTO "files" VALUES('file-06613b0495a6cd2bdb5278d46cb88d28','proj_06613b03c6444796da4b1d54a46a4d72','in.jsonl','batch',616,1795755968,'d8410ea1ef7ca84abc8794e5fda372bf4169bb82693d56bb3c0c27725a572d13',1798347968);
INSERT INTO "files" VALUES('file-06613b055191b4b1324b1aec6b21a714','proj_06613b03c6444796da4b1d54a46a4d72','batch_06613b04977785307762ccaaa4c1ab7e_output.jsonl','batch_output',1848,1795755980,'a017b0a5a85c348739340c502c41e9583ff055feba80e2ff99490e89d152722b',NULL);
INSERT INTO "files" VALUES('file-06613b05528a8b2d78c7bc15ca55935d','proj_06613b03c6444796da4b1d54a46a4d72','batch_06613b04977785307762ccaaa4c1ab7e_manifest.json','batch_output',2524,1795755980,'25377dbd18f2ff62cd7bc0d31b0279cb2c467b5225fc67ec73fa21a6cf829955',NULL);
INSERT INTO "files" VALUES('file-06613b055322d62ce3f381f0d8ab26b6','proj_06613b03c6444796da4b1d54a46a4d72','in.jsonl','batch',9520,1795755980,'d4fda8edad3a959b82d6f14c7a7802d94cdd0aebc17f47004cd7f65055e1b032',1798347980);
CREATE TABLE holds (
	model VARCHAR(256) NOT NULL, 
	reason VARCHAR NOT NULL, 
	since BIGINT NOT NULL, 
	attempts BIGINT NOT NULL, 
	retry_at DOUBLE NOT NULL, 
	CONSTRAINT pk_holds PRIMARY KEY (model)
);
CREATE TABLE job_artifacts (
	job_id VARCHAR(64) NOT NULL, 
	name VARCHAR(128) NOT NULL, 
	file_id VARCHAR(64) NOT NULL, 
	lines BIGINT, 
	CONSTRAINT pk_job_artifacts PRIMARY KEY (job_id, name), 
	CONSTRAINT fk_job_artifacts_job_id FOREIGN KEY(job_id) REFERENCES jobs (id), 
	CONSTRAINT fk_job_artifacts_file_id FOREIGN KEY(file_id) REFERENCES files (id)
);
CREATE TABLE job_chunks (
	id INTEGER NOT NULL, 
	job_id VARCHAR(64) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	sha256 VARCHAR(64) NOT NULL, 
	rows BIGINT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	CONSTRAINT pk_job_chunks PRIMARY KEY (id), 
	CONSTRAINT uq_job_chunks_job_id_sha256 UNIQUE (job_id, sha256), 
	CONSTRAINT fk_job_chunks_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
);
CREATE TABLE job_replies (
	id INTEGER NOT NULL, 
	job_id VARCHAR(64) NOT NULL, 
	position BIGINT NOT NULL, 
	life BIGINT NOT NULL, 
	turn BIGINT NOT NULL, 
	created_at BIGINT NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	body JSON NOT NULL, 
	key_id VARCHAR(64), 
	CONSTRAINT pk_job_replies PRIMARY KEY (id), 
	CONSTRAINT uq_job_replies_job_id_position_life_turn_kind UNIQUE (job_id, position, life, turn, kind), 
	CONSTRAINT fk_job_replies_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
);
CREATE TABLE job_stages (
	job_id VARCHAR(64) NOT NULL, 
	number BIGINT NOT NULL, 
	name VARCHAR(128) NOT NULL, 
	batch_id VARCHAR(64), 
	cursor BIGINT NOT NULL, 
	issued BIGINT NOT NULL, 
	expected BIGINT, 
	CONSTRAINT pk_job_stages PRIMARY KEY (job_id, number), 
	CONSTRAINT fk_job_stages_job_id FOREIGN KEY(job_id) REFERENCES jobs (id), 
	CONSTRAINT fk_job_stages_batch_id FOREIGN KEY(batch_id) REFERENCES batches (id)
);
CREATE TABLE jobs (
	id VARCHAR(64) NOT NULL, 
	project_id VARCHAR(64) NOT NULL, 
	name VARCHAR(128), 
	variant VARCHAR(128), 
	paused_by VARCHAR(128), 
	created_by VARCHAR(64), 
	answers_from VARCHAR(64), 
	parent_id VARCHAR(64), 
	idempotency_sha256 VARCHAR(64), 
	recipe VARCHAR(128) NOT NULL, 
	recipe_sha256 VARCHAR(64) NOT NULL, 
	config_sha256 VARCHAR(64) NOT NULL, 
	work_sha256 VARCHAR(64) NOT NULL, 
	completion_window VARCHAR(16) NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	sla VARCHAR(16) NOT NULL, 
	input_file_id VARCHAR(64), 
	items_sha256 VARCHAR(64), 
	retry_of VARCHAR(64), 
	input_sha256 VARCHAR(64) NOT NULL, 
	input_name VARCHAR(512) NOT NULL, 
	options JSON NOT NULL, 
	models JSON NOT NULL, 
	counters JSON NOT NULL, 
	post_process JSON NOT NULL, 
	depends_on JSON NOT NULL, 
	seed BIGINT NOT NULL, 
	created_at BIGINT NOT NULL, 
	expires_at BIGINT NOT NULL, 
	due_at BIGINT NOT NULL, 
	total BIGINT NOT NULL, 
	admitted BIGINT NOT NULL, 
	completed BIGINT NOT NULL, 
	failed BIGINT NOT NULL, 
	stuck BIGINT NOT NULL, 
	expired_items BIGINT NOT NULL, 
	cancelled_items BIGINT NOT NULL, 
	waiting_for_verdict BIGINT NOT NULL, 
	restarted BIGINT NOT NULL, 
	reused BIGINT NOT NULL, 
	attempts BIGINT NOT NULL, 
	epoch BIGINT NOT NULL, 
	simulated BOOLEAN NOT NULL, 
	infeasible BOOLEAN NOT NULL, 
	outcome VARCHAR(16), 
	in_progress_at BIGINT, 
	finalizing_at BIGINT, 
	completed_at BIGINT, 
	failed_at BIGINT, 
	expired_at BIGINT, 
	cancelling_at BIGINT, 
	cancelled_at BIGINT, 
	output_expires_after BIGINT, 
	paused_at BIGINT, 
	amendments BIGINT DEFAULT '0' NOT NULL, 
	unwritten BIGINT DEFAULT '0' NOT NULL, 
	ahead JSON, 
	metrics JSON, 
	report JSON, 
	metadata JSON, 
	errors JSON, 
	child_key VARCHAR(256), 
	holder VARCHAR(256), 
	idempotency_key VARCHAR(255), 
	attempt_error VARCHAR, 
	lease_expires_at DOUBLE, only_judges BOOLEAN DEFAULT 0 NOT NULL, traceparent VARCHAR(55), 
	CONSTRAINT pk_jobs PRIMARY KEY (id), 
	CONSTRAINT fk_jobs_project_id FOREIGN KEY(project_id) REFERENCES projects (id)
);
CREATE TABLE parts (
	id INTEGER NOT NULL, 
	batch_id VARCHAR(64) NOT NULL, 
	segment_id INTEGER NOT NULL, 
	sha256 VARCHAR(64) NOT NULL, 
	created_at DOUBLE NOT NULL, 
	completed BIGINT NOT NULL, 
	failed BIGINT NOT NULL, 
	input_tokens BIGINT NOT NULL, 
	cached_tokens BIGINT NOT NULL, 
	output_tokens BIGINT NOT NULL, 
	shared_requests BIGINT DEFAULT '0' NOT NULL, 
	shared_input_tokens BIGINT DEFAULT '0' NOT NULL, 
	shared_output_tokens BIGINT DEFAULT '0' NOT NULL, reasoning_tokens BIGINT DEFAULT '0' NOT NULL, cut_off BIGINT DEFAULT '0' NOT NULL, empty BIGINT DEFAULT '0' NOT NULL, invalid BIGINT DEFAULT '0' NOT NULL, 
	CONSTRAINT pk_parts PRIMARY KEY (id), 
	CONSTRAINT fk_parts_batch_id FOREIGN KEY(batch_id) REFERENCES batches (id), 
	CONSTRAINT fk_parts_segment_id FOREIGN KEY(segment_id) REFERENCES segments (id)
);
INSERT INTO "parts" VALUES(1,'batch_06613b04977785307762ccaaa4c1ab7e',1,'58d9e9d957b95cafff592e39963b5eeaa482cedb48d4887ea7834746405e837c',1.79575597979760622976e+09,4,0,8,0,8,0,0,0,0,0,0,0);
INSERT INTO "parts" VALUES(2,'batch_06613b055377917ae6452c98d6e2e9e4',2,'5e70f67f290b99bec4d7d0f31094c8a88cc02e2b170cc53237ee421cbc408db0',1795755985.74227,3,0,6,0,6,0,0,0,0,0,0,0);
INSERT INTO "parts" VALUES(3,'batch_06613b055377917ae6452c98d6e2e9e4',2,'9a8b0e72266980aac4fd53fad756ee30ab782907d64439b11e11cae9ab50c600',1.79575598697075915341e+09,3,0,6,0,6,0,0,0,0,0,0,0);
CREATE TABLE projects (
	id VARCHAR(64) NOT NULL, 
	name VARCHAR(128) NOT NULL, 
	created_at BIGINT NOT NULL, 
	tier VARCHAR(64), 
	max_segments BIGINT, 
	cache_bytes BIGINT, 
	service DOUBLE DEFAULT '0' NOT NULL, 
	service_at DOUBLE DEFAULT '0' NOT NULL, live_tier VARCHAR(16), zero_retention_minutes BIGINT, erasing_at BIGINT, max_stored_bytes BIGINT, 
	CONSTRAINT pk_projects PRIMARY KEY (id), 
	CONSTRAINT uq_projects_name UNIQUE (name)
);
INSERT INTO "projects" VALUES('proj_06613b03c6444796da4b1d54a46a4d72','default',1795755954,NULL,NULL,NULL,5.9959347046996676056e+00,1.79575598697962284088e+09,NULL,NULL,NULL,NULL);
CREATE TABLE schedule_runs (
	id VARCHAR(64) NOT NULL, 
	project_id VARCHAR(64) NOT NULL, 
	schedule_id VARCHAR(64) NOT NULL, 
	scheduled_at BIGINT, 
	missed_from BIGINT, 
	state VARCHAR(16) NOT NULL, 
	batch_id VARCHAR(64), 
	job_id VARCHAR(64), 
	reason VARCHAR, 
	created_at BIGINT NOT NULL, 
	CONSTRAINT pk_schedule_runs PRIMARY KEY (id), 
	CONSTRAINT uq_schedule_runs_schedule_id_scheduled_at UNIQUE (schedule_id, scheduled_at), 
	CONSTRAINT fk_schedule_runs_project_id FOREIGN KEY(project_id) REFERENCES projects (id), 
	CONSTRAINT fk_schedule_runs_schedule_id FOREIGN KEY(schedule_id) REFERENCES schedules (id), 
	CONSTRAINT fk_schedule_runs_batch_id FOREIGN KEY(batch_id) REFERENCES batches (id)
);
CREATE TABLE schedules (
	id VARCHAR(64) NOT NULL, 
	project_id VARCHAR(64) NOT NULL, 
	name VARCHAR(128) NOT NULL, 
	cron VARCHAR(128) NOT NULL, 
	timezone VARCHAR(64) NOT NULL, 
	input JSON NOT NULL, 
	batch JSON NOT NULL, 
	input_sha256 VARCHAR(64) NOT NULL, 
	job JSON, 
	overlap VARCHAR(16) NOT NULL, 
	catch_up VARCHAR(16) NOT NULL, 
	paused BOOLEAN NOT NULL, 
	next_run_at BIGINT, 
	version BIGINT NOT NULL, 
	created_at BIGINT NOT NULL, 
	CONSTRAINT pk_schedules PRIMARY KEY (id), 
	CONSTRAINT fk_schedules_project_id FOREIGN KEY(project_id) REFERENCES projects (id)
);
CREATE TABLE segments (
	id INTEGER NOT NULL, 
	batch_id VARCHAR(64) NOT NULL, 
	number BIGINT NOT NULL, 
	requests BIGINT NOT NULL, 
	attempts BIGINT NOT NULL, 
	epoch BIGINT NOT NULL, 
	model VARCHAR(256) NOT NULL, 
	bytes BIGINT DEFAULT '0' NOT NULL, 
	answered BIGINT DEFAULT '0' NOT NULL, 
	request_class VARCHAR(16) DEFAULT 'decode' NOT NULL, 
	plan_sha256 VARCHAR(64), 
	row_group BIGINT, 
	state VARCHAR(16) NOT NULL, 
	not_before DOUBLE NOT NULL, 
	engine JSON, 
	error VARCHAR, 
	holder VARCHAR(256), 
	lease_expires_at DOUBLE, 
	CONSTRAINT pk_segments PRIMARY KEY (id), 
	CONSTRAINT uq_segments_batch_id_number UNIQUE (batch_id, number), 
	CONSTRAINT fk_segments_batch_id FOREIGN KEY(batch_id) REFERENCES batches (id)
);
INSERT INTO "segments" VALUES(1,'batch_06613b04977785307762ccaaa4c1ab7e',0,4,0,1,'echo',260,4,'decode',NULL,NULL,'done',0.0,'{"engine": "echo", "version": "0.1.0", "simulated": "true"}',NULL,NULL,1.79575597984710240363e+09);
INSERT INTO "segments" VALUES(2,'batch_06613b055377917ae6452c98d6e2e9e4',0,60,0,1,'slow',3950,6,'decode',NULL,NULL,'running',0.0,NULL,NULL,'host-1/12587/ce7ad4a0-a0f0-4596-a8e1-18b5595f1d88',1.79575601679546070091e+09);
CREATE TABLE sessions (
	token_sha256 VARCHAR(64) NOT NULL, 
	key_id VARCHAR(64) NOT NULL, 
	expires_at BIGINT NOT NULL, 
	CONSTRAINT pk_sessions PRIMARY KEY (token_sha256), 
	CONSTRAINT fk_sessions_key_id FOREIGN KEY(key_id) REFERENCES api_keys (id)
);
CREATE TABLE speeds (
	model VARCHAR(256) NOT NULL, 
	config_sha256 VARCHAR(64) NOT NULL, 
	request_class VARCHAR(16) NOT NULL, 
	seconds DOUBLE NOT NULL, 
	requests DOUBLE NOT NULL, 
	bytes DOUBLE NOT NULL, 
	tokens DOUBLE NOT NULL, 
	squares DOUBLE NOT NULL, 
	parts DOUBLE NOT NULL, 
	measured_at DOUBLE DEFAULT '0' NOT NULL, 
	request_seconds DOUBLE DEFAULT '0' NOT NULL, 
	request_squares DOUBLE DEFAULT '0' NOT NULL, 
	began_at DOUBLE DEFAULT '0' NOT NULL, 
	in_flight_limit DOUBLE DEFAULT '0' NOT NULL, 
	CONSTRAINT pk_speeds PRIMARY KEY (model, config_sha256, request_class)
);
INSERT INTO "speeds" VALUES('echo','163ddf6c22fef5b3b54e64d42cded591b24a80410c4214c3ca26d20adad7078c','decode',0.001,4.0,260.0,16.0,400000.0,0.0,1.79575597982586669925e+09,0.001,100.0,1.79575597980560708053e+09,256.0);
INSERT INTO "speeds" VALUES('slow','9344329139895ac8014a8281919c0d8cb19f9020ff293610b6ac54f72c61edc5','decode',2.42606502510443533537e+00,6.0,395.0,24.0,370.97109545168,1.0,1.79575598698116540912e+09,2.42606502510443533537e+00,150.0,0.0,1.0);
CREATE TABLE upload_parts (
	id VARCHAR(64) NOT NULL, 
	upload_id VARCHAR(64) NOT NULL, 
	bytes BIGINT NOT NULL, 
	sha256 VARCHAR(64) NOT NULL, 
	created_at BIGINT NOT NULL, 
	CONSTRAINT pk_upload_parts PRIMARY KEY (id), 
	CONSTRAINT uq_upload_parts_upload_id_sha256 UNIQUE (upload_id, sha256), 
	CONSTRAINT fk_upload_parts_upload_id FOREIGN KEY(upload_id) REFERENCES uploads (id)
);
CREATE TABLE uploads (
	id VARCHAR(64) NOT NULL, 
	project_id VARCHAR(64) NOT NULL, 
	filename VARCHAR(512) NOT NULL, 
	purpose VARCHAR(32) NOT NULL, 
	bytes BIGINT NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	created_at BIGINT NOT NULL, 
	expires_at BIGINT NOT NULL, 
	file_expires_after BIGINT, 
	part_ids JSON, 
	file_id VARCHAR(64), 
	CONSTRAINT pk_uploads PRIMARY KEY (id), 
	CONSTRAINT fk_uploads_project_id FOREIGN KEY(project_id) REFERENCES projects (id)
);
CREATE TABLE usage (
	batch_id VARCHAR(64) NOT NULL, 
	model VARCHAR(256) NOT NULL, 
	day BIGINT NOT NULL, 
	project_id VARCHAR(64) NOT NULL, 
	job_id VARCHAR(64), 
	key_id VARCHAR(64), 
	requests BIGINT NOT NULL, 
	failed BIGINT NOT NULL, 
	shared_requests BIGINT NOT NULL, 
	input_tokens BIGINT NOT NULL, 
	cached_tokens BIGINT NOT NULL, 
	output_tokens BIGINT NOT NULL, 
	bytes BIGINT NOT NULL, 
	milliseconds BIGINT NOT NULL, 
	currency VARCHAR(3), 
	input_price BIGINT, 
	cached_price BIGINT, 
	output_price BIGINT, 
	hour_price BIGINT, 
	CONSTRAINT pk_usage PRIMARY KEY (batch_id, model, day), 
	CONSTRAINT fk_usage_project_id FOREIGN KEY(project_id) REFERENCES projects (id)
);
INSERT INTO "usage" VALUES('batch_06613b04977785307762ccaaa4c1ab7e','echo',20784,'proj_06613b03c6444796da4b1d54a46a4d72',NULL,'06613b03c64a526ea68a13f1171af579',4,0,0,8,0,8,260,1,'EUR',1000000,1000000,2000000,0);
INSERT INTO "usage" VALUES('batch_06613b055377917ae6452c98d6e2e9e4','slow',20784,'proj_06613b03c6444796da4b1d54a46a4d72',NULL,'06613b03c64a526ea68a13f1171af579',6,0,0,12,0,12,394,2427,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE webhooks (
	id VARCHAR(64) NOT NULL, 
	project_id VARCHAR(64) NOT NULL, 
	name VARCHAR(128) NOT NULL, 
	secret VARCHAR(128) NOT NULL, 
	url VARCHAR(2048) NOT NULL, 
	event_types JSON NOT NULL, 
	old_secret VARCHAR(128), 
	old_secret_until BIGINT, 
	enabled BOOLEAN NOT NULL, 
	created_at BIGINT NOT NULL, 
	updated_at BIGINT NOT NULL, 
	CONSTRAINT pk_webhooks PRIMARY KEY (id), 
	CONSTRAINT fk_webhooks_project_id FOREIGN KEY(project_id) REFERENCES projects (id)
);
CREATE INDEX ix_batches_seconds_sha256 ON batches (seconds_sha256);
CREATE INDEX ix_batches_status_expires_at ON batches (status, expires_at);
CREATE INDEX ix_batches_project_id_status ON batches (project_id, status);
CREATE INDEX ix_batches_input_file_id ON batches (input_file_id);
CREATE INDEX ix_batches_retry_of ON batches (retry_of);
CREATE UNIQUE INDEX ix_batches_project_id_idempotency_key ON batches (project_id, idempotency_key);
CREATE INDEX ix_batches_job_id ON batches (job_id);
CREATE INDEX ix_batches_project_id_id ON batches (project_id, id);
CREATE INDEX ix_batches_rows_sha256 ON batches (rows_sha256);
CREATE INDEX ix_cached_answers_project_id_used_at_bytes ON cached_answers (project_id, used_at, bytes);
CREATE INDEX ix_files_sha256 ON files (sha256);
CREATE INDEX ix_files_expires_at ON files (expires_at);
CREATE INDEX ix_files_project_id_id ON files (project_id, id);
CREATE INDEX ix_jobs_items_sha256 ON jobs (items_sha256);
CREATE INDEX ix_jobs_project_id_id ON jobs (project_id, id);
CREATE INDEX ix_jobs_unwritten ON jobs (unwritten);
CREATE INDEX ix_jobs_project_id_config_sha256 ON jobs (project_id, config_sha256);
CREATE INDEX ix_jobs_input_sha256 ON jobs (input_sha256);
CREATE UNIQUE INDEX ix_jobs_project_id_idempotency_key ON jobs (project_id, idempotency_key);
CREATE INDEX ix_jobs_input_file_id ON jobs (input_file_id);
CREATE UNIQUE INDEX ix_jobs_parent_id_child_key ON jobs (parent_id, child_key);
CREATE INDEX ix_jobs_status_expires_at ON jobs (status, expires_at);
CREATE INDEX ix_jobs_retry_of ON jobs (retry_of);
CREATE INDEX ix_schedules_input_sha256 ON schedules (input_sha256);
CREATE INDEX ix_schedules_next_run_at ON schedules (next_run_at);
CREATE INDEX ix_schedules_project_id_id ON schedules (project_id, id);
CREATE INDEX ix_usage_project_id_day ON usage (project_id, day);
CREATE INDEX ix_usage_day ON usage (day);
CREATE INDEX ix_usage_job_id ON usage (job_id);
CREATE INDEX ix_webhooks_project_id_id ON webhooks (project_id, id);
CREATE INDEX ix_artifacts_file_id ON artifacts (file_id);
CREATE INDEX ix_events_project_id_id ON events (project_id, id);
CREATE INDEX ix_events_job_id_type ON events (job_id, type);
CREATE INDEX ix_events_batch_id_type ON events (batch_id, type);
CREATE INDEX ix_job_artifacts_file_id ON job_artifacts (file_id);
CREATE INDEX ix_job_chunks_sha256 ON job_chunks (sha256);
CREATE INDEX ix_job_replies_job_id_id ON job_replies (job_id, id);
CREATE INDEX ix_job_stages_batch_id ON job_stages (batch_id);
CREATE INDEX ix_schedule_runs_job_id ON schedule_runs (job_id);
CREATE INDEX ix_schedule_runs_batch_id ON schedule_runs (batch_id);
CREATE INDEX ix_schedule_runs_schedule_id_id ON schedule_runs (schedule_id, id);
CREATE INDEX ix_segments_state_model ON segments (state, model);
CREATE INDEX ix_segments_plan_sha256 ON segments (plan_sha256);
CREATE INDEX ix_segments_batch_id_state ON segments (batch_id, state);
CREATE INDEX ix_sessions_expires_at ON sessions (expires_at);
CREATE INDEX ix_deliveries_state_next_attempt_at ON deliveries (state, next_attempt_at);
CREATE INDEX ix_deliveries_event_id ON deliveries (event_id);
CREATE INDEX ix_deliveries_webhook_id_id ON deliveries (webhook_id, id);
CREATE INDEX ix_parts_batch_id_created_at ON parts (batch_id, created_at);
CREATE INDEX ix_parts_sha256 ON parts (sha256);
CREATE UNIQUE INDEX ix_parts_segment_id_sha256 ON parts (segment_id, sha256);
CREATE INDEX ix_uploads_expires_at ON uploads (expires_at);
CREATE INDEX ix_upload_parts_sha256 ON upload_parts (sha256);
CREATE UNIQUE INDEX ix_appends_batch_id_idempotency_key ON appends (batch_id, idempotency_key);
CREATE INDEX ix_cached_answers_batch_id ON cached_answers (batch_id);
CREATE INDEX ix_files_project_id_expires_at_bytes ON files (project_id, expires_at, bytes);
COMMIT;
