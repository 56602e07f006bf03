"""Never the wrong adapter: two real replicas, more adapters than they have room for, and many changes at the same time.

Under load, one replica is killed and restarted, the other is paused and then stopped. Meanwhile, aliases are moved,
split and rolled back, jobs publish new adapters, and some callers request the prompt's log-probabilities, as a job's
certification does. No answer or score may come from another adapter, and none may be lost. Only a kill may truncate an
answer, and the caller must be able to see that.

In `make test` each of these happens alone, to one replica: `tests/vllm/test_unload.py`, `test_loading_under_load.py`, `test_cpu_patch.py`.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from random import Random
from threading import Event
from typing import Any

import httpx
import pytest

from tests.support.serving_installation import build_base
from tests.support.waiting import eventually
from tests.system.marker_adapters import Marker, make_markers
from tests.system.marker_load import Load, MovingAlias, Outcome, Prompt, Question, ask, settled
from tests.system.replica_tier import Program, Publisher, Tier, loaded, make_installation

pytestmark = [pytest.mark.long, pytest.mark.vllm, pytest.mark.timeout(900)]

ADAPTERS, NEWCOMERS = 8, 4
ROOM = {"serving_max_loras": 2, "serving_max_cpu_loras": 3}
ASKERS, USERS = 8, 6
LENGTHS = (1, 6, 90)
"""Tokens: the short ones have adapters change places all the time, the long ones are there to be cut."""
LONG = "the red fox runs near the forest, a ship sails by the stars; " * 8
"""More than a block of the prefix cache: a block that another adapter filled would be taken if it could be."""
PROMPTS = [Prompt.plain("the red fox"), Prompt.plain(LONG), Prompt.chat("hello")]
SCORED_SHARE, SCORE_TOLERANCE = 0.25, 1e-3
"""Share of unstreamed requests that ask for the prompt's log-probabilities; largest difference from transformers' (nats)."""
FIRST_BYTE_SECONDS, PAUSE_SECONDS, STALL_SECONDS, MOVE_SECONDS = 2.5, 4.0, 1.5, 0.4
WARM_ANSWERS = 60
"""After this many answers, every adapter has been requested, most of them more than once."""
BREATH_SECONDS = 2.0
"""Between two questions while a replica starts: it needs the processors as well."""
NOTICED_SECONDS = 10.0
"""How long after a kill a stream may break off."""
DRAINED_SECONDS = 90.0
"""Longest time that a replica may continue with requests in flight after it was stopped."""
PATIENCE_SECONDS = 180.0
"""Longest time that a busy machine may need for a state or a number of answers."""
MOVES = 20
"""Smallest number of moves of each alias."""
KNOWN_SECONDS = 10.0
"""How long after a job's end its alias may still mean what it did: other processes look a few times a second, when they come to run."""


@dataclass
class World:
    """The tier and what is true about it.

    Attributes:
        base_answers: prompt → answer of the base, of ``LENGTHS[1]`` tokens.
        base_scores: prompt → log-probabilities (nats) that the base gives its tokens.
        published: adapters that the API knows by now.
        moved: aliases that people move.
        latest: an alias that jobs move.
        kills: when a replica was killed.
    """

    tier: Tier
    publisher: Publisher
    base: str
    markers: dict[str, Marker]
    published: list[str]
    newcomers: list[str]
    latest: MovingAlias
    moved: list[MovingAlias] = field(default_factory=lambda: [MovingAlias("support"), MovingAlias("sales")])
    base_answers: dict[str, str] = field(default_factory=dict)
    base_scores: dict[str, list[float]] = field(default_factory=dict)
    kills: list[float] = field(default_factory=list)

    @property
    def aliases(self) -> dict[str, MovingAlias]:
        return {alias.name: alias for alias in (*self.moved, self.latest)}

    def question(self, random: Random) -> Question:
        """Make the next question: mostly for aliases that move, the rest for ids, and the base now and then."""
        streamed, user = random.random() < 0.6, f"user-{random.randrange(USERS)}"
        prompt, tokens = random.choice(PROMPTS), random.choice(LENGTHS)
        scored = not streamed and random.random() < SCORED_SHARE
        if random.random() < 0.05:
            return Question(self.base, prompt, LENGTHS[1], streamed, user, scored)
        model = random.choice(list(self.aliases) if random.random() < 0.6 else self.published)
        return Question(model, prompt, tokens, streamed, user, scored)

    def lost(self, outcome: Outcome) -> bool:
        """Return whether the answer is not complete, and is not a stream that a kill interrupted in sight of the
        client.
        """
        if outcome.whole and not outcome.error:
            return False
        at_a_kill = any(0 <= outcome.ended - kill < NOTICED_SECONDS for kill in self.kills)
        return not (outcome.error and outcome.question.streamed and outcome.pieces and at_a_kill)

    def wrong(self, outcome: Outcome) -> bool:
        """The header names an adapter that was not meant, or something of the answer is not that adapter's."""
        if not outcome.pieces:
            return False
        right, served = self._right(outcome), outcome.adapter or self.base
        is_right = outcome.text == right if outcome.whole else right.startswith(outcome.text)
        is_right &= not (outcome.question.scored and outcome.whole) or outcome.scores == approx(self._scores(outcome))
        return outcome.adapter not in self._meant(outcome) or outcome.models != {served} or not is_right

    def _meant(self, outcome: Outcome) -> frozenset[str | None]:
        model = outcome.question.model
        if alias := self.aliases.get(model):
            meanings = alias.meant(outcome.sent, outcome.headed)
            return frozenset(adapter for meaning in meanings for adapter in meaning.adapters)
        return frozenset({None if model == self.base else model})

    def _right(self, outcome: Outcome) -> str:
        text, tokens = outcome.question.prompt.text, outcome.question.tokens
        return self.markers[outcome.adapter].answers[text][:tokens] if outcome.adapter else self.base_answers[text]

    def _scores(self, outcome: Outcome) -> list[float]:
        text = outcome.question.prompt.text
        return self.markers[outcome.adapter].scores[text] if outcome.adapter else self.base_scores[text]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    base = tmp_path_factory.mktemp("markers") / "base"
    build_base(base)
    installation = make_installation(base)
    replicas = [Program(installation, "serving", **ROOM) for _ in range(2)]
    publisher = Publisher(installation)
    urls = ",".join(replica.url for replica in replicas)
    patience = {"first_byte_seconds": FIRST_BYTE_SECONDS, "warm_seconds": PATIENCE_SECONDS}
    api = Program(installation, "api", serving_urls=urls, health_seconds=0.5, **patience)
    try:
        made = make_markers(installation, ADAPTERS + NEWCOMERS, [prompt.text for prompt in PROMPTS], max(LENGTHS))
        markers = {marker.adapter_id: marker for marker in made}
        latest, first = MovingAlias("latest"), list(markers)[:ADAPTERS]
        latest.move(lambda: publisher.publish(first, latest.name))
        tier = Tier(api, replicas, publisher.create_key())
        for program in (*replicas, api):
            program.wait()
        yield World(tier, publisher, installation.entry.name, markers, first, list(markers)[ADAPTERS:], latest)
    finally:
        for program in (api, *replicas):
            program.stop()
        publisher.close()


def test_never_the_wrong_adapter(world: World) -> None:
    check_the_markers(world)
    with world.tier.client() as client:
        for prompt in PROMPTS:
            answer = ask(client, Question(world.base, prompt, LENGTHS[1], False, "somebody", scored=True))
            assert answer.scores, answer
            world.base_answers[prompt.text], world.base_scores[prompt.text] = answer.text, answer.scores
    with moving(world), Load(world.tier.client, world.question, ASKERS) as load:
        warmed = make_trouble(world, load)
    with world.tier.client() as client:  # one replica is left: the one that was started again
        all_again = [ask(client, Question(adapter, PROMPTS[0], 1, True, "somebody")) for adapter in world.markers]
    outcomes = load.outcomes + all_again
    report = summary(world, outcomes)
    print(json.dumps(report))
    assert not [outcome for outcome in outcomes if world.wrong(outcome)], "no answer is wrong"
    assert not [outcome for outcome in outcomes if world.lost(outcome)], "none is lost, and none is cut in silence"
    assert not unsteady(world, outcomes), "who asks again gets the same side of a split"
    assert report["cut"], "streams were cut, so there was something to lose"
    assert report["scored"] > ADAPTERS, "prompts were scored beside the streams"
    assert len(warmed & world.markers.keys()) >= ADAPTERS - 1, "it was asked for the busiest before it counted"
    assert all(alias.moves > MOVES for alias in world.moved)


def approx(scores: list[float]) -> Any:
    return pytest.approx(scores, abs=SCORE_TOLERANCE)


def check_the_markers(world: World) -> None:
    """Each answers with letters of its own, so one token shows which adapter answered."""
    letters = [letter for marker in world.markers.values() for letter in marker.letters]
    assert len(set(letters)) == len(letters)
    for marker in world.markers.values():
        assert all(set(answer) <= marker.letters for answer in marker.answers.values()), marker
    for prompt in PROMPTS:
        scores = [marker.scores[prompt.text] for marker in world.markers.values()]
        assert not [pair for pair in combinations(scores, 2) if pair[0] == approx(pair[1])], (
            "scores tell them apart too"
        )
    answers = {answer for marker in world.markers.values() for answer in marker.answers.values()}
    assert len(answers) > 2 * len(world.markers), "and in which of them depends on the prompt"


def make_trouble(world: World, load: Load) -> set[str]:
    """Kill a replica and start it again, pause and stop the other one, and publish new adapters.

    Returns the adapters that the new replica had loaded when it was up.
    """
    victim, other = world.tier.replicas
    load.wait_for_answers(WARM_ANSWERS, PATIENCE_SECONDS)
    pause_amid_streams(load, victim)
    kill(world, victim)
    world.tier.wait_for(victim, "down", PATIENCE_SECONDS)
    victim.start()
    load.pause = BREATH_SECONDS
    publish_one_more(world)
    publish_one_more(world)
    victim.wait()
    world.tier.wait_for(victim, "up", PATIENCE_SECONDS)
    warmed = loaded(victim)
    load.pause = 0
    other.pause()
    publish_one_more(world)
    time.sleep(PAUSE_SECONDS)
    other.resume()
    publish_one_more(world)
    load.wait_for_answers(ASKERS, PATIENCE_SECONDS)
    pause_amid_streams(load, other)
    other.terminate()
    other.resume()
    other.wait_for_end(DRAINED_SECONDS)
    load.wait_for_answers(WARM_ANSWERS, PATIENCE_SECONDS)
    eventually(lambda: load.scored() > ADAPTERS, PATIENCE_SECONDS, "prompts were scored")
    eventually(lambda: all(alias.moves > MOVES for alias in world.moved), PATIENCE_SECONDS, "aliases were moved")
    return warmed


def pause_amid_streams(load: Load, replica: Program) -> None:
    """Leave the replica paused, with a stream that has begun there and does not continue."""
    for _ in range(50):
        replica.pause()
        before = load.begun()
        time.sleep(STALL_SECONDS)
        if before.items() & load.begun().items():
            return
        replica.resume()
        time.sleep(STALL_SECONDS / 2)
    pytest.fail("no stream was ever under way there")


def kill(world: World, replica: Program) -> None:
    world.kills.append(time.monotonic())
    replica.kill()


def publish_one_more(world: World) -> None:
    """A job finishes outside the API; its adapter can be requested as soon as the API knows it."""
    adapter_id = world.newcomers.pop(0)
    world.latest.move(lambda: world.publisher.publish([adapter_id], world.latest.name), slack=KNOWN_SECONDS)
    deadline = time.monotonic() + KNOWN_SECONDS
    with world.tier.client() as client:
        while client.get(f"/v1/models/{adapter_id}").status_code != 200:
            assert time.monotonic() < deadline, "the API does not hear of it"
    world.published.append(adapter_id)


@contextmanager
def moving(world: World) -> Iterator[None]:
    """Aliases that somebody moves all the time."""
    over, random = Event(), Random(0)

    def keep_moving() -> None:
        while not over.wait(MOVE_SECONDS):
            for alias in world.moved:
                move(client, world, alias, random, random.choice(["PUT", "PUT", "rollback"]))

    with world.tier.client() as client, ThreadPoolExecutor(1) as thread:
        for alias in world.moved * 2:  # twice, because the first move cannot be rolled back
            move(client, world, alias, random, "PUT")
        mover = thread.submit(keep_moving)
        try:
            yield
        finally:
            over.set()
        mover.result()


def move(client: httpx.Client, world: World, alias: MovingAlias, random: Random, verb: str) -> None:
    """Point an alias to one to three adapters, sometimes with a shadow, or roll it back."""
    chosen = random.sample(world.published, random.randint(2, 4))
    targets = [{"adapter": adapter, "weight": random.randint(1, 9)} for adapter in chosen[1:]]
    shadow = {"adapter": chosen[0], "share": 0.2} if random.random() < 0.3 else None
    url = f"/v1/aliases/{alias.name}"

    def send() -> list[str]:
        if verb == "PUT":
            answer = client.put(url, json={"targets": targets, "shadow": shadow})
        else:
            answer = client.post(f"{url}/rollback")
        assert answer.status_code == 200, answer.text
        return [target["adapter"] for target in answer.json()["targets"]]

    alias.move(send)


def unsteady(world: World, outcomes: list[Outcome]) -> list[Any]:
    """Users who got more than one adapter of an alias that was not moved meanwhile."""
    found: dict[Any, set[str | None]] = {}
    for alias in world.moved:
        for meaning, outcome in settled(outcomes, alias):
            found.setdefault((alias.name, meaning.began, outcome.question.user), set()).add(outcome.adapter)
    return [who for who, adapters in found.items() if len(adapters) > 1]


def summary(world: World, outcomes: list[Outcome]) -> dict[str, Any]:
    errors = Counter(outcome.error[:100] for outcome in outcomes if outcome.error)
    return {
        "answers": len(outcomes),
        "by_adapter": sorted(Counter(outcome.adapter for outcome in outcomes if outcome.adapter).values()),
        "scored": sum(1 for outcome in outcomes if outcome.scores),
        "cut": sum(1 for outcome in outcomes if outcome.error and not world.lost(outcome)),
        "moves": {alias.name: alias.moves for alias in world.aliases.values()},
        "errors": dict(errors),
        "slowest_seconds": round(max(outcome.ended - outcome.sent for outcome in outcomes), 2),
    }
