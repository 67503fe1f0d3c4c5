"""Publish commands to Redis exactly once: the target of all sinks of Redis.

A *ledger* is a hash of Redis in which a sink notes the snapshots that it has written. A script
looks at the ledger, runs commands, and changes the ledger. No other client sees or does anything in
between. So the commands of a script and the note of them belong together, also in the log from
which the server is restored.

The output of a snapshot may be large, and a script blocks the server. So the output is written by
several scripts, and the ledger also has the snapshot that is being written, and how many of its
commands are done. A JobManager that goes on after a failure skips these.

Each connection of a JobManager puts a token of its own into the ledger. A script with another token
does nothing. So an old JobManager cannot write any more when a new one has begun.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgpack

from penstock.connectors.patience import Patience
from penstock.connectors.redis.connection import RedisConnection, hash_tag
from penstock.connectors.staged_sink import Marker, SinkPlace, Target
from penstock.dataflow.errors import JobError, Recoverability
from penstock.dataflow.type_variables import PlainValue

logger = logging.getLogger("penstock.connectors")

#: A command with its arguments. The first argument is the key.
RedisCommand = list[Any]

#: The number of bytes after which a script is full, besides its last command.
_SCRIPT_BYTES = 1 << 20
#: How many bytes of a snapshot are read before the first script runs. So damage to a staged file is
#: found in time, unless the snapshot is larger.
_READ_AHEAD_BYTES = 64 << 20

#: Takes the ledger, and returns what it says about the newest snapshots.
_FENCE = """
redis.call('HSET', KEYS[1], 'writer', ARGV[1])
return redis.call('HMGET', KEYS[1], 'number', 'digest', 'part', 'part_digest', 'done')
"""

# A command that fails ends the script, but the effects of the commands before it stay. So their
# number is noted in the ledger, too.
_WRITE = """
local ledger = KEYS[1]
local writer, number, digest, before, last = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local at = redis.call('HMGET', ledger, 'writer', 'number', 'part', 'part_digest', 'done')
if at[1] ~= writer then return {'fenced', at[1] or ''} end
if at[2] and tonumber(at[2]) >= tonumber(number) then return {'published', at[2]} end
local done = 0
if at[3] then
  if at[3] ~= number or at[4] ~= digest then return {'unfinished', at[3], at[5]} end
  done = tonumber(at[5])
end
if done ~= before then return {'gap', tostring(done)} end
local commands = cmsgpack.unpack(ARGV[6])
for i = 1, #commands do
  local answer = redis.pcall(unpack(commands[i]))
  if type(answer) == 'table' and answer.err then
    if i > 1 then
      redis.call('HSET', ledger, 'part', number, 'part_digest', digest, 'done', done + i - 1)
    end
    return {'failed', answer.err, commands[i][1], commands[i][2]}
  end
end
if last == '1' then
  redis.call('HSET', ledger, 'number', number, 'digest', digest)
  redis.call('HDEL', ledger, 'part', 'part_digest', 'done')
else
  redis.call('HSET', ledger, 'part', number, 'part_digest', digest, 'done', done + #commands)
end
return {'ok'}
"""


def ledger_key(key: str, place: SinkPlace) -> bytes:
    """Return the key of the ledger of a sink, in the same hash slot as the key it writes to.

    Examples:
        >>> ledger_key("orders", SinkPlace("1f3b", "sink", "Redis"))
        b'penstock:ledger:{orders}:1f3b-sink-2389fc5a2aeb2a2e'
    """
    return b"penstock:ledger:{%s}:%s" % (hash_tag(key.encode()), place.key.encode())


@dataclass(frozen=True)
class RedisWriting:
    """Describes the commands of a sink, and the place to which it writes.

    Arguments:
        connection: the server.
        key: the key that the sink writes to, or the beginning of its keys.
        commands: returns the commands for a staged value. Those of a list come in one script.
        script_commands: the largest number of commands of a script.
        patience_seconds: how long to try to reach the server.
    """

    connection: RedisConnection
    key: str
    commands: Callable[[Any], Iterable[list[RedisCommand]]]
    script_commands: int
    patience_seconds: float


class RedisTarget(Target):
    """A connection of a sink's committer to Redis.

    Arguments:
        writing: the server, the key and the commands of the sink.
        place: the place of the sink.
    """

    def __init__(self, writing: RedisWriting, place: SinkPlace) -> None:
        self._writing, self._place = writing, place
        self._ledger = ledger_key(writing.key, place)
        self._writer = uuid.uuid4().hex
        self._client: Any = None
        #: The snapshot that is written in part, its digest, and the number of its commands.
        self._part: tuple[int, str, int] | None = None

    def fence(self) -> Marker | None:
        """Take the ledger, so that no earlier connection can write, and return its marker."""
        writing, what = self._writing, f"write to {self._writing.key!r}"
        patience = Patience(writing.connection, writing.patience_seconds)
        while True:
            try:
                if self._client is None:
                    self._client = writing.connection.client()
                    self._require_one_slot()
                # A repetition has no other effect.
                answer = self._client.eval(_FENCE, 1, self._ledger, self._writer)
                patience.succeeded()
                break
            except JobError:
                raise
            except Exception as error:
                self.close()
                time.sleep(patience.after(error, what))
        number, digest, part, part_digest, done = answer
        self._part = None if part is None else (int(part), part_digest.decode(), int(done))
        self._warn_of_eviction()
        return None if number is None else Marker(int(number), digest.decode())

    def publish(self, marker: Marker, batches: Iterator[PlainValue]) -> None:
        """Write the commands of a snapshot, and its marker with the last of them."""
        done = 0
        if self._part is not None:
            number, digest, done = self._part
            if (number, digest) != (marker.number, marker.digest):
                raise self._unfinished(number, done, marker.number)
        waiting: list[tuple[bytes, int, set[Any]]] = []
        size = 0
        for script in self._scripts(batches, done):
            waiting.append(script)
            size += len(script[0])
            # The last one is held back, because the marker comes with it.
            while size > _READ_AHEAD_BYTES and len(waiting) > 1:
                size -= len(waiting[0][0])
                done = self._run(marker, waiting.pop(0), done, last=False)
        for index, script in enumerate(waiting):
            done = self._run(marker, script, done, last=index == len(waiting) - 1)
        self._part = None

    def close(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):
                client.close()

    def _scripts(
        self, batches: Iterator[PlainValue], skipped: int
    ) -> Iterator[tuple[bytes, int, set[Any]]]:
        """Yield packed commands, their number and their keys; at least once."""
        commands: list[bytes] = []
        keys: set[Any] = set()
        size, pack = 0, msgpack.Packer(use_bin_type=False).pack
        for batch in batches:
            for group in self._writing.commands(batch):
                if len(commands) >= self._writing.script_commands or size >= _SCRIPT_BYTES:
                    yield _packed(commands), len(commands), keys
                    commands, keys, size = [], set(), 0
                for command in group:
                    if skipped:
                        skipped -= 1
                        continue
                    packed = pack(command)
                    commands.append(packed)
                    keys.add(command[1])
                    size += len(packed)
        yield _packed(commands), len(commands), keys

    def _run(
        self, marker: Marker, script: tuple[bytes, int, set[Any]], done: int, *, last: bool
    ) -> int:
        """Run one script, and return how many commands of the snapshot are done then."""
        packed, count, keys = script
        arguments = [self._writer, marker.number, marker.digest, done, int(last), packed]
        names = [self._ledger, *sorted(keys)]
        try:
            answer = self._client.eval(_WRITE, len(names), *names, *arguments)
        except Exception as error:
            what = f"write to {self._writing.key!r}"
            raise self._writing.connection.explain(error, what) from error
        kind, *rest = [part.decode(errors="replace") for part in answer]
        if kind != "ok":
            raise self._refusal(kind, rest, marker)
        return done + count

    # ---- errors

    def _refusal(self, kind: str, rest: list[str], marker: Marker) -> JobError:
        where = f"{self._writing.key!r} at {self._writing.connection.place}"
        if kind == "failed":
            reason, command, key = rest
            passing = reason.startswith(("OOM", "MISCONF", "NOREPLICAS"))
            return JobError(
                f"Redis refuses {command} of the key {key!r} at {self._writing.connection.place}: "
                f"{reason}",
                recoverability=(
                    Recoverability.ENVIRONMENT if passing else Recoverability.NON_RECOVERABLE
                ),
            )
        if kind == "unfinished":
            return self._unfinished(int(rest[0]), int(rest[1]), marker.number)
        said = {
            "fenced": "another JobManager of this job writes there now",
            "published": "another JobManager of this job has published the snapshot",
            "gap": "another number of its records is there than this JobManager has written",
        }[kind]
        # The next connection reads from the ledger how much is published.
        return JobError(
            f"snapshot {marker.number} cannot be published to {where}: {said}",
            recoverability=Recoverability.ENVIRONMENT,
        )

    def _unfinished(self, number: int, done: int, wanted: int) -> JobError:
        return JobError(
            f"{done} records of snapshot {number} are at {self._writing.key!r} already, and the "
            f"others are not; they belong to another run than snapshot {wanted}, which comes now. "
            f"Resume from snapshot {number}, whose output then becomes complete; or start a new "
            f"line of output with --resume NUMBER --fork. Nothing was written",
            operator=f"sink {self._place.name}",
            recoverability=Recoverability.NON_RECOVERABLE,
        )

    def _require_one_slot(self) -> None:
        """Refuse a key whose ledger would be in another hash slot of a cluster."""
        if not self._writing.connection.cluster:
            return
        from redis.crc import key_slot

        key = self._writing.key.encode()
        if key_slot(key) != key_slot(self._ledger):
            raise JobError(
                f"the key {self._writing.key!r} and its ledger {self._ledger.decode()!r} have "
                f"different hash slots, and a script can only use one: leave braces out of the "
                f"key, or put its first part into one pair, as in {{shop}}:orders",
                recoverability=Recoverability.NON_RECOVERABLE,
            )

    def _warn_of_eviction(self) -> None:
        with suppress(Exception):
            policy = self._client.info("memory")["maxmemory_policy"]
            if policy.startswith("allkeys"):
                logger.warning(
                    "Redis at %s may evict any key (maxmemory-policy %s): if it evicts the ledger "
                    "%s or output, the job stops. Use noeviction or a volatile policy",
                    *(self._writing.connection.place, policy, self._ledger.decode()),
                )


def _packed(commands: list[bytes]) -> bytes:
    header: bytes = msgpack.Packer().pack_array_header(len(commands))
    return header + b"".join(commands)
