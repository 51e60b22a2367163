"""The tables of the store, and the steps from each version to the next."""

import sqlite3

MIGRATIONS = (
    """
    CREATE TABLE clusters (
        cluster_id TEXT PRIMARY KEY, name TEXT NOT NULL, cloud TEXT NOT NULL, region TEXT NOT NULL,
        recipe_hash TEXT NOT NULL, recipe_path TEXT NOT NULL, recipe_text TEXT NOT NULL,
        state TEXT NOT NULL, user TEXT NOT NULL, disk_gib INTEGER NOT NULL,
        created_at TEXT NOT NULL, ended_at TEXT
    );
    CREATE INDEX clusters_by_state ON clusters (state, name);

    CREATE TABLE members (
        instance_id TEXT PRIMARY KEY, cluster_id TEXT NOT NULL REFERENCES clusters,
        instance_type TEXT NOT NULL, market TEXT NOT NULL, zone TEXT NOT NULL, state TEXT NOT NULL,
        host TEXT NOT NULL, ssh_port INTEGER NOT NULL, hourly_usd TEXT, price_source TEXT NOT NULL,
        price_as_of TEXT, launched_at TEXT NOT NULL, ended_at TEXT
    );
    CREATE INDEX members_by_cluster ON members (cluster_id);

    CREATE TABLE intents (
        intent_id INTEGER PRIMARY KEY, cluster_id TEXT NOT NULL REFERENCES clusters,
        action TEXT NOT NULL, detail TEXT NOT NULL, begun_at TEXT NOT NULL, outcome TEXT, ended_at TEXT
    );
    CREATE INDEX intents_by_cluster ON intents (cluster_id);

    CREATE TABLE runs (
        run_id TEXT PRIMARY KEY, cluster_id TEXT NOT NULL, cluster_name TEXT NOT NULL,
        instance_id TEXT NOT NULL, workload TEXT NOT NULL, cloud TEXT NOT NULL, region TEXT NOT NULL,
        zone TEXT NOT NULL, instance_type TEXT NOT NULL, market TEXT NOT NULL, image_id TEXT NOT NULL,
        hourly_usd TEXT, price_source TEXT NOT NULL, price_as_of TEXT, state TEXT NOT NULL,
        started_at TEXT NOT NULL, ended_at TEXT, exit_status INTEGER,
        records_bytes INTEGER NOT NULL DEFAULT 0
    );
    CREATE INDEX runs_by_cluster ON runs (cluster_id);
    CREATE INDEX runs_by_start ON runs (started_at);

    CREATE TABLE records (
        run_id TEXT NOT NULL REFERENCES runs, position INTEGER NOT NULL,
        kind TEXT NOT NULL, line TEXT NOT NULL,
        PRIMARY KEY (run_id, position)
    ) WITHOUT ROWID;
    CREATE INDEX records_by_kind ON records (kind, run_id);

    CREATE TABLE prices (
        instance_type TEXT NOT NULL, region TEXT NOT NULL, market TEXT NOT NULL, as_of TEXT NOT NULL,
        hourly_usd TEXT NOT NULL, source TEXT NOT NULL,
        PRIMARY KEY (instance_type, region, market, as_of)
    ) WITHOUT ROWID;
    """,
    """
    CREATE TABLE answers (
        subject TEXT PRIMARY KEY, content TEXT NOT NULL, as_of TEXT NOT NULL
    ) WITHOUT ROWID
    """,
    # For cost reports: the prices of both markets, the start of set-up, and an index of results. Keys of a
    # result never change, so they may be stored beside its record; the index finds the newest of each.
    """
    ALTER TABLE runs ADD COLUMN setup_at TEXT;
    CREATE INDEX runs_by_instance ON runs (instance_id, started_at);
    CREATE INDEX runs_by_cluster_name ON runs (cluster_name);

    CREATE TABLE run_prices (
        run_id TEXT NOT NULL REFERENCES runs, market TEXT NOT NULL, zone TEXT NOT NULL,
        hourly_usd TEXT NOT NULL, as_of TEXT NOT NULL, source TEXT NOT NULL,
        PRIMARY KEY (run_id, market)
    ) WITHOUT ROWID;

    CREATE TABLE leases (
        instance_id TEXT PRIMARY KEY, launched_at TEXT NOT NULL, ended_at TEXT, disk_gib INTEGER NOT NULL
    ) WITHOUT ROWID;

    CREATE TABLE results (
        run_id TEXT NOT NULL REFERENCES runs, position INTEGER NOT NULL,
        workload TEXT NOT NULL, instance_type TEXT NOT NULL, cloud TEXT NOT NULL,
        case_name TEXT NOT NULL, setting TEXT NOT NULL, started_at TEXT NOT NULL,
        PRIMARY KEY (run_id, position)
    ) WITHOUT ROWID;
    CREATE INDEX results_newest ON results
        (workload, instance_type, cloud, case_name, setting, started_at, run_id, position);

    INSERT INTO results
        SELECT run_id, position, workload, instance_type, cloud,
            coalesce(json_extract(line, '$.case'), ''), coalesce(json_extract(line, '$.setting'), ''),
            started_at
        FROM records JOIN runs USING (run_id) WHERE kind = 'result' AND json_valid(line)
    """,
    # The clusters of one `dlcloud bench`, and the cases it left out: with them it is resumed.
    """
    CREATE TABLE benches (
        bench_id TEXT PRIMARY KEY, digest TEXT NOT NULL, begun_at TEXT NOT NULL, ended_at TEXT
    );
    CREATE INDEX benches_by_digest ON benches (digest, begun_at);

    CREATE TABLE bench_clusters (
        bench_id TEXT NOT NULL REFERENCES benches, cluster_id TEXT NOT NULL,
        PRIMARY KEY (bench_id, cluster_id)
    ) WITHOUT ROWID;

    CREATE TABLE bench_left_out (
        bench_id TEXT NOT NULL REFERENCES benches, instance_type TEXT NOT NULL, benchmark TEXT NOT NULL,
        setting TEXT NOT NULL, reason TEXT NOT NULL,
        PRIMARY KEY (bench_id, instance_type, benchmark, setting)
    ) WITHOUT ROWID
    """,
    # EC2 took the instance back: its first hour is free.
    """
    ALTER TABLE members ADD COLUMN interrupted INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE leases ADD COLUMN interrupted INTEGER NOT NULL DEFAULT 0
    """,
    # The account that a cluster was launched in, the tags of what is launched later, and the way in.
    """
    ALTER TABLE clusters ADD COLUMN profile TEXT NOT NULL DEFAULT '';
    ALTER TABLE clusters ADD COLUMN own_tags TEXT NOT NULL DEFAULT '';
    ALTER TABLE clusters ADD COLUMN network TEXT NOT NULL DEFAULT ''
    """,
    # A command on several nodes is a run on each: that of rank 0 holds the records.
    """
    ALTER TABLE runs ADD COLUMN nodes INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE runs ADD COLUMN rank INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE runs ADD COLUMN head_run_id TEXT NOT NULL DEFAULT '';
    CREATE INDEX runs_by_head ON runs (head_run_id) WHERE head_run_id <> ''
    """,
    # A trial of an experiment is a run with values: the next `up` finds those that are done by them.
    """
    ALTER TABLE runs ADD COLUMN experiment TEXT NOT NULL DEFAULT '';
    ALTER TABLE runs ADD COLUMN trial INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE runs ADD COLUMN trial_values TEXT NOT NULL DEFAULT '';
    CREATE INDEX runs_by_experiment ON runs (experiment) WHERE experiment <> ''
    """,
    # What an intent launched, or ends: before, the ids were words of its texts.
    """
    ALTER TABLE intents ADD COLUMN fleet_id TEXT NOT NULL DEFAULT '';
    ALTER TABLE intents ADD COLUMN instance_ids TEXT NOT NULL DEFAULT '[]';
    UPDATE intents SET fleet_id = substr(outcome, 1, instr(outcome || ' ', ' ') - 1)
    WHERE action = 'launch' AND outcome LIKE 'fleet-%';
    UPDATE intents SET
        instance_ids = '["' || replace(trim(substr(outcome, length(fleet_id) + 1)), ' ', '","') || '"]'
    WHERE action = 'launch' AND (outcome LIKE 'i-%' OR outcome LIKE 'fleet-% i-%');
    UPDATE intents SET instance_ids = '["' || replace(detail, ' ', '","') || '"]'
    WHERE action = 'shrink' AND detail LIKE 'i-%'
    """,
    # The AWS account that a cluster belongs to; one of an earlier version gets it when it is reached again.
    """
    ALTER TABLE clusters ADD COLUMN account TEXT NOT NULL DEFAULT '';
    ALTER TABLE clusters ADD COLUMN partition TEXT NOT NULL DEFAULT '';
    ALTER TABLE clusters ADD COLUMN aws_profile TEXT NOT NULL DEFAULT ''
    """,
)


class NewerSchemaError(ValueError):
    """A newer dlcloud wrote the store."""


def migrate(connection: sqlite3.Connection) -> None:
    """Migrate the tables to this version; if several processes try at once, one of them does it.

    Raises:
        NewerSchemaError: A newer dlcloud wrote the store.
    """
    version = _version(connection)
    if version == len(MIGRATIONS):
        return
    if version > len(MIGRATIONS):
        message = f"its schema is version {version}, this dlcloud reads up to {len(MIGRATIONS)}"
        raise NewerSchemaError(message)
    connection.execute("BEGIN IMMEDIATE")
    try:
        for step in MIGRATIONS[_version(connection) :]:
            for statement in step.split(";"):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
