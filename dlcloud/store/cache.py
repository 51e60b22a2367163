"""Answers of the cloud that change rarely, with their dates."""

from datetime import datetime

from dlcloud.store.database import Database


class AnswerCache:
    """The table answers.

    Raises:
        StoreError: From any method.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, subject: str) -> tuple[str, datetime] | None:
        """Return what was remembered of a subject, and of when it is."""
        rows = self._database.read("SELECT content, as_of FROM answers WHERE subject = ?", subject)
        return (rows[0]["content"], datetime.fromisoformat(rows[0]["as_of"])) if rows else None

    def put(self, subject: str, content: str, as_of: datetime) -> None:
        """Keep an answer in place of an older one."""
        row = {"subject": subject, "content": content, "as_of": as_of}
        self._database.insert("answers", row, replace=True)
