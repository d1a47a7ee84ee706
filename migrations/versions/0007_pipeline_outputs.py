"""Pipelines' outputs: where executors stage rows before they count, and which files count.

Locks: share row exclusive on kafka.pipelines for an instant (a foreign key points at it); else new objects.
"""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

OBJECTS = """
CREATE SCHEMA IF NOT EXISTS kafka_staging;

CREATE TABLE kafka.pipeline_files (
    batch_id bigint NOT NULL,
    size_bytes bigint NOT NULL,
    committed_at timestamptz NOT NULL DEFAULT now(),
    pipeline text COLLATE "C" NOT NULL REFERENCES kafka.pipelines ON DELETE CASCADE,
    output text COLLATE "C" NOT NULL,
    path text COLLATE "C" NOT NULL,
    PRIMARY KEY (pipeline, output, batch_id, path)
);

CREATE VIEW kafka.output_files AS
SELECT f.pipeline, f.output, f.batch_id, f.path, f.size_bytes, f.committed_at
FROM kafka.pipeline_files f
JOIN kafka.pipelines p ON p.name = f.pipeline
WHERE f.batch_id <= p.batch_id;
"""

COMMENTS = {
    "SCHEMA kafka_staging": "Rows of pipelines' batches on their way to target tables; nothing here counts. Left-overs "
    "of killed runs are dropped when the pipeline runs again.",
    "TABLE kafka.pipeline_files": "Manifest of the files that pipelines wrote, as they committed it. Read "
    "kafka.output_files.",
    "COLUMN kafka.pipeline_files.batch_id": "The batch whose rows it holds.",
    "COLUMN kafka.pipeline_files.size_bytes": "Size of the file.",
    "COLUMN kafka.pipeline_files.committed_at": "When it began to count.",
    "COLUMN kafka.pipeline_files.pipeline": "The pipeline, see kafka.pipelines.",
    "COLUMN kafka.pipeline_files.output": "Which of the job's outputs.",
    "COLUMN kafka.pipeline_files.path": "Where the file is, as Spark names it.",
    "VIEW kafka.output_files": "The files that count: written by batches that were committed and not undone since.",
    "COLUMN kafka.output_files.pipeline": "The pipeline.",
    "COLUMN kafka.output_files.output": "Which of the job's outputs.",
    "COLUMN kafka.output_files.batch_id": "The batch whose rows it holds.",
    "COLUMN kafka.output_files.path": "Where the file is, as Spark names it.",
    "COLUMN kafka.output_files.size_bytes": "Size of the file.",
    "COLUMN kafka.output_files.committed_at": "When it began to count.",
}

GRANTS = """
DO $grants$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'tablewire_gateway') THEN
        GRANT SELECT, INSERT, UPDATE, DELETE ON kafka.pipeline_files TO tablewire_gateway;
        GRANT SELECT ON kafka.output_files TO tablewire_gateway;
        GRANT USAGE, CREATE ON SCHEMA kafka_staging TO tablewire_gateway;
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'tablewire_reader') THEN
        GRANT SELECT ON kafka.output_files TO tablewire_reader;
    END IF;
END
$grants$;
"""


def upgrade() -> None:
    op.execute(OBJECTS)
    for target, text in COMMENTS.items():
        quoted = text.replace("'", "''")
        op.execute(f"COMMENT ON {target} IS '{quoted}'")
    op.execute(GRANTS)


def downgrade() -> None:
    raise NotImplementedError("restore a backup: files of pipelines have no place in the older schema")
