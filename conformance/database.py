"""What any client of the database does with commands: enqueue, cancel, await. Plain SQL, one driver.

Owns: every statement of the conformance script. Never: a write to a table of the gateway; what has
no published function or view is only read, or locked for a while.

1. Each call is a transaction of its own (autocommit), as a simple client would have it.
2. A result is awaited with LISTEN, and the view is read again after each notification.
"""

import time
import uuid
from contextlib import contextmanager

import psycopg

from node import PATIENCE_S, StoryFailed

DONE_CHANNEL = "gateway_command_done"
TERMINAL = ("succeeded", "failed", "canceled", "expired", "refused")


class Database:
    """A connection of a client that owns no gateway. Commands go by (node id, id)."""

    def __init__(self, url: str):
        self._url = url
        self._connection = psycopg.connect(url, autocommit=True, client_encoding="utf8")
        self._connection.execute(f"LISTEN {DONE_CHANNEL}")
        self._node_of = {}

    def enqueue(self, node_id: str, lane: str, payload=b"", kind="conformance", **more) -> uuid.UUID:
        """Enqueues a command. `more` names further parameters of `enqueue_command`."""
        arguments = {"node_id": node_id, "kind": kind, "payload": payload, "lane": lane, "notify": True, **more}
        named = ", ".join(f"{name} => %({name})s" for name in arguments)
        command_id = self._one(f"SELECT enqueue_command({named})", arguments)
        self._node_of[command_id] = node_id
        return command_id

    def enqueue_many(self, node_id: str, lane: str, count: int) -> list:
        """Enqueues that many commands in one transaction, in order."""
        with self._connection.transaction():
            return [self.enqueue(node_id, lane) for _ in range(count)]

    def enqueue_and_roll_back(self, node_id: str, lane: str) -> uuid.UUID:
        """Enqueues a command in a transaction that does not commit."""
        with self._connection.transaction(force_rollback=True):
            command_id = self.enqueue(node_id, lane)
        del self._node_of[command_id]
        return command_id

    def clock_plus(self, seconds: float):
        """A date by the database's clock."""
        return self._one("SELECT compute_now() + make_interval(secs => %s)", (seconds,))

    def cancel(self, *command_ids: uuid.UUID) -> None:
        """Asks that commands be canceled."""
        with self._connection.transaction():
            for command_id in command_ids:
                self._connection.execute(
                    "SELECT cancel_command(node_id => %s, id => %s)", (self._node_of[command_id], command_id)
                )

    def state(self, command_id: uuid.UUID) -> str:
        return self.status(command_id)["state"]

    def status(self, command_id: uuid.UUID) -> dict:
        """The command's row of the view `command_status`."""
        with self._connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
            row = cursor.execute(
                "SELECT * FROM command_status WHERE node_id = %s AND id = %s", (self._node_of[command_id], command_id)
            ).fetchone()
        if row is None:
            raise StoryFailed(f"command_status has no row for {command_id}")
        return row

    def await_terminal(self, command_id: uuid.UUID, expected: str, timeout_s=PATIENCE_S) -> dict:
        """Waits until the command is terminal, and in the expected state."""
        deadline = time.monotonic() + timeout_s
        while (row := self.status(command_id))["state"] not in TERMINAL:
            left = deadline - time.monotonic()
            if left <= 0:
                raise StoryFailed(f"{command_id} is still {row['state']} after {timeout_s:g} s")
            for _ in self._connection.notifies(timeout=left, stop_after=1):
                pass
        if row["state"] != expected:
            raise StoryFailed(f"{command_id} ended {row['state']}; expected {expected}")
        return row

    def await_notified(self, command_id: uuid.UUID, timeout_s=PATIENCE_S) -> None:
        """Waits for the notification that names the command."""
        for notification in self._connection.notifies(timeout=timeout_s):
            if str(command_id) in notification.payload:
                return
        raise StoryFailed(f"{DONE_CHANNEL} did not name {command_id} within {timeout_s:g} s")

    def await_not_after(self, command_id: uuid.UUID) -> None:
        """Waits until the database's clock is past the command's `not_after`."""
        not_after = self.status(command_id)["not_after"]
        while (left := self._one("SELECT extract(epoch FROM %s - compute_now())::float8", (not_after,))) >= 0:
            self._connection.execute("SELECT pg_sleep(%s)", (left + 0.01,))

    def await_disconnected(self, node_id: str, epoch: int, timeout_s=PATIENCE_S) -> None:
        """Waits until the node's session of that epoch is marked disconnected."""
        deadline = time.monotonic() + timeout_s
        while True:
            row = self._connection.execute(
                "SELECT session_epoch, disconnected_at FROM node_sessions WHERE node_id = %s", (node_id,)
            ).fetchone()
            if row is not None and row[0] == epoch and row[1] is not None:
                return
            if time.monotonic() > deadline:
                raise StoryFailed(f"the session of epoch {epoch} is not marked disconnected: {row}")
            # There is no notification for this; the bound above holds.
            self._connection.execute("SELECT pg_sleep(0.05)")

    def events(self, node_id: str, journal_id: str) -> list:
        """The stored events of a journal, as (seq, body), in order; tombstones have an empty body."""
        rows = self._connection.execute(
            "SELECT seq, body FROM events WHERE node_id = %s AND journal_id = %s ORDER BY seq", (node_id, journal_id)
        ).fetchall()
        return [(seq, bytes(body)) for seq, body in rows]

    def set_spec(self, node_id: str, name: str, body: bytes) -> int:
        """Sets a spec of a node; gives its generation."""
        return self._one("SELECT set_spec(%s, %s, %s)", (node_id, name, body))

    def spec(self, node_id: str, name: str) -> tuple:
        """What a waiter reads of a spec: (generation, answered generation, outcome, what it waits for)."""
        return self._connection.execute(
            "SELECT generation, applied_generation, outcome, waits_for FROM spec_status"
            " WHERE node_id = %s AND name = %s",
            (node_id, name),
        ).fetchone()
    def envelope(self, node_id: str, journal_id: str, seq: int) -> tuple:
        """The signed envelope of a stored event: body, key id, signature."""
        body, kid, signature = self._connection.execute(
            "SELECT signed_body, signed_kid, signature FROM events WHERE (node_id, journal_id, seq) = (%s, %s, %s)",
            (node_id, journal_id, seq),
        ).fetchone()
        return bytes(body), kid, bytes(signature)

    def statuses(self, node_id: str, id: str) -> list:
        """The stored statuses of that id, as (kind, body): one at most."""
        rows = self._connection.execute(
            "SELECT kind, body FROM node_statuses WHERE node_id = %s AND id = %s", (node_id, id)
        ).fetchall()
        return [(kind, bytes(body)) for kind, body in rows]

    def xids(self, node_id: str, gpu: str) -> list:
        """What the handler of `gpu.xid` has counted for a GPU, as (xid, times)."""
        return self._connection.execute(
            "SELECT xid, times FROM gpu_xids WHERE node_id = %s AND gpu = %s ORDER BY xid", (node_id, gpu)
        ).fetchall()

    def failures(self, node_id: str, key: str, value: str) -> list:
        """The published failures of hooks about that subject, in order."""
        rows = self._connection.execute(
            "SELECT body FROM outbox WHERE kind = 'node.report-failed' AND node_id = %s AND body ->> %s = %s ORDER BY id",
            (node_id, key, value),
        ).fetchall()
        return [body for (body,) in rows]
    def section(self, node_id: str, section: str):
        """The stored body of a section of the node's inventory; None where there is none."""
        row = self._connection.execute(
            "SELECT body FROM inventory_sections WHERE node_id = %s AND section = %s", (node_id, section)
        ).fetchone()
        return None if row is None else bytes(row[0])

    def forget_section(self, node_id: str, section: str) -> None:
        """Removes a section of the node's inventory."""
        self._connection.execute("SELECT forget_section(%s, %s)", (node_id, section))

    @contextmanager
    def holding(self, statement, arguments):
        """Holds the locks that a statement takes, in a transaction of its own, for as long as the block runs."""
        with psycopg.connect(self._url) as connection:
            connection.execute(statement, arguments)
            yield
            connection.rollback()

    def cancel_leftovers(self) -> None:
        """Cancels what stories enqueued and did not finish, so that the next story starts clean."""
        self.cancel(*[id for id in self._node_of if self.state(id) not in TERMINAL])
        self._node_of.clear()

    def refusal_of(self, statement, arguments) -> str:
        """The message with which the database refuses a statement."""
        try:
            self._connection.execute(statement, arguments)
        except psycopg.Error as error:
            return str(error).strip()
        raise StoryFailed(f"the database took what it must refuse: {statement}")

    def _one(self, statement, arguments):
        return self._connection.execute(statement, arguments).fetchone()[0]
