"""HTTP to a server: errors, retries, resumed event streams, options, event loops."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from client_kit import KEY, FakeGateway, job_event

import art
from art.backends.http import Connection, FixedEndpoint
from art.backends.local import default_path
from art.backends.options import train_config
from art.backends.server import best_step
from art.errors import (
    ConfigError,
    DeadlineExceeded,
    InvalidInput,
    NotFound,
    ParityFailed,
    ServerUnreachable,
    Unauthorized,
    UnsupportedOption,
)

MESSAGES: list[Any] = [{"role": "user", "content": "well?"}]


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with FakeGateway() as running:
        yield running


@pytest.fixture
def model(gateway: FakeGateway) -> art.TrainableModel[Any, Any]:
    made: art.TrainableModel[Any, Any] = art.TrainableModel(name="m", project="p", base_model="base")
    made.register(art.RemoteBackend(gateway.url, KEY))
    return made


def batch(*rewards: float) -> list[art.TrajectoryGroup]:
    return [art.TrajectoryGroup([art.Trajectory(reward=value) for value in rewards])]


# -- reaching the server


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def test_an_unreachable_server_is_named_with_what_to_do() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    model: art.TrainableModel[Any, Any] = art.TrainableModel(name="m", project="p", base_model="base")
    with pytest.raises(ServerUnreachable) as caught:
        asyncio.run(_register(model, art.RemoteBackend(url, KEY)))
    assert url in caught.value.message
    assert "art serve" in caught.value.hint


async def _register(model: art.TrainableModel[Any, Any], backend: art.RemoteBackend) -> None:
    await model.register(backend)


def test_a_wrong_key_is_refused_with_where_the_key_is(gateway: FakeGateway) -> None:
    model: art.TrainableModel[Any, Any] = art.TrainableModel(name="m", project="p", base_model="base")
    with pytest.raises(Unauthorized) as caught:
        asyncio.run(_register(model, art.RemoteBackend(gateway.url, "wrong")))
    assert "admin.key" in caught.value.hint
    assert len(gateway.requests) == 1  # a refusal is not tried again


def test_an_error_of_the_server_arrives_whole(
    gateway: FakeGateway, model: art.TrainableModel[Any, Any]
) -> None:
    gateway.refuse = NotFound("no base model 'base'", cause="not on the hub", hint="check the name")
    with pytest.raises(NotFound) as caught:
        asyncio.run(model.get_step())
    assert caught.value.to_dict() == gateway.refuse.to_dict()


def test_another_service_at_the_address_is_told_apart(gateway: FakeGateway) -> None:
    connection = Connection(FixedEndpoint(gateway.url, KEY))
    with pytest.raises(NotFound, match="does not exist"):
        asyncio.run(connection.request("GET", "/nothing/here"))


@pytest.mark.parametrize(("url", "key"), [("127.0.0.1:7999", "k"), ("ftp://x", "k"), ("http://x:1", "")])
def test_an_address_that_cannot_be_one_is_refused_at_once(url: str, key: str) -> None:
    with pytest.raises(ConfigError):
        art.RemoteBackend(url, key)


def test_an_interrupted_request_is_sent_again(gateway: FakeGateway) -> None:
    connection = Connection(FixedEndpoint(gateway.url, KEY))

    async def run() -> int:
        await connection.api.model("p", "m")
        gateway.half_answers = 2
        return (await connection.api.model("p", "m")).step

    assert asyncio.run(run()) == 0
    assert len(gateway.requests) == 4


def test_a_server_that_was_there_is_waited_for() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    connection = Connection(FixedEndpoint(url, KEY), outage_seconds=20)
    with FakeGateway(port):
        asyncio.run(connection.api.model("p", "m"))

    async def run() -> str:
        asking = asyncio.create_task(connection.api.model("p", "m"))
        await asyncio.sleep(0.3)
        assert not asking.done()
        with FakeGateway(port):
            return (await asking).name

    assert asyncio.run(run()) == "m"


# -- clients for agents


def test_one_client_works_in_several_event_loops(
    gateway: FakeGateway, model: art.TrainableModel[Any, Any]
) -> None:
    client = model.openai_client()

    async def ask() -> str | None:
        answer = await client.chat.completions.create(model="m", messages=MESSAGES)
        return answer.choices[0].message.content

    assert [asyncio.run(ask()) for _ in range(3)] == ["yes"] * 3
    threads: list[str | None] = []
    workers = [threading.Thread(target=lambda: threads.append(asyncio.run(ask()))) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert threads == ["yes"] * 3
    assert model.openai_client() is client
    assert len(gateway.bodies("/api/v1/models")) == 1  # set up once, at the first call


def test_calls_inside_gather_carry_their_rollout_and_those_outside_none(
    gateway: FakeGateway, model: art.TrainableModel[Any, Any]
) -> None:
    async def rollout() -> art.Trajectory:
        client = model.openai_client()
        for _ in range(2):
            answer = await client.chat.completions.create(model="m", messages=MESSAGES)
        return art.Trajectory(messages_and_choices=[*MESSAGES, answer.choices[0]], reward=1)

    async def run() -> list[art.Trajectory]:
        await model.openai_client().chat.completions.create(model="m", messages=MESSAGES)
        result: list[art.Trajectory] = await art.gather_trajectories(rollout() for _ in range(3))
        return result

    trajectories = asyncio.run(run())
    sent = [headers.get("x-art-rollout") for headers in gateway.headers("/v1/chat/completions")]
    assert sent[0] is None
    assert sorted(filter(None, sent)) == sorted([t.rollout_id for t in trajectories if t.rollout_id] * 2)
    assert len(set(sent)) == 4
    assert {headers["x-art-project"] for headers in gateway.headers("/v1/chat/completions")} == {"p"}
    rewarded = [path.split("/")[-2] for _, path, _, _ in gateway.requests if path.endswith("/reward")]
    finished = [path.split("/")[-2] for _, path, _, _ in gateway.requests if path.endswith("/finish")]
    assert set(rewarded) == set(finished) == {trajectory.rollout_id for trajectory in trajectories}


def test_calls_inside_a_group_carry_the_group_and_their_place_in_it(
    gateway: FakeGateway, model: art.TrainableModel[Any, Any]
) -> None:
    async def rollout() -> art.Trajectory:
        await model.openai_client().chat.completions.create(model="m", messages=MESSAGES)
        return art.Trajectory(reward=1)

    async def run() -> None:
        await art.gather_trajectory_groups(art.TrajectoryGroup(rollout() for _ in range(3)) for _ in range(2))
        await art.gather_trajectories([rollout()])

    asyncio.run(run())
    places: dict[str | None, list[str | None]] = {}
    for headers in gateway.headers("/v1/chat/completions"):
        places.setdefault(headers.get("x-art-group"), []).append(headers.get("x-art-member"))
    assert places.pop(None) == [None]
    assert [sorted(filter(None, members)) for members in places.values()] == [["0", "1", "2"]] * 2


def test_models_that_play_one_another_have_rollouts_of_their_own(gateway: FakeGateway) -> None:
    backend = art.RemoteBackend(gateway.url, KEY)
    players: list[art.TrainableModel[Any, Any]] = []
    for name in ("a", "b"):
        player: art.TrainableModel[Any, Any] = art.TrainableModel(name=name, project="p", base_model="base")
        player.register(backend)
        players.append(player)

    async def rollout() -> art.Trajectory:
        for player in [*players, *players]:
            await player.openai_client().chat.completions.create(model=player.name, messages=MESSAGES)
        return art.Trajectory(reward=1)

    async def in_session() -> str:
        async with art.rollout(players[1]) as session:
            await rollout()
        return session.rollout_id

    def calls() -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for _, path, body, headers in gateway.requests:
            if path.endswith("/chat/completions"):
                found.setdefault(body["model"], set()).add(headers["x-art-rollout"])
        gateway.requests.clear()
        return found

    [trajectory] = asyncio.run(art.gather_trajectories([rollout()]))
    finished = [path.split("/")[-2] for _, path, _, _ in gateway.requests if path.endswith("/finish")]
    rewarded = [path.split("/")[-2] for _, path, _, _ in gateway.requests if path.endswith("/reward")]
    one = trajectory.rollout_id
    assert calls() == {"a": {one}, "b": {f"{one}.1"}}
    assert (sorted(finished), rewarded) == (sorted([one, f"{one}.1"]), [one])

    session = asyncio.run(in_session())
    finished = [path.split("/")[-2] for _, path, _, _ in gateway.requests if path.endswith("/finish")]
    assert sorted(finished) == sorted([session, f"{session}.1"])
    assert calls() == {"a": {f"{session}.1"}, "b": {session}}


def test_a_failed_rollout_is_reported_by_whose_fault_it_was(
    gateway: FakeGateway, model: art.TrainableModel[Any, Any]
) -> None:
    async def rollout(error: Exception) -> art.Trajectory:
        await model.openai_client().chat.completions.create(model="m", messages=MESSAGES)
        raise error

    errors: list[Exception] = [ValueError("bad parse"), ConnectionResetError("gone")]
    asyncio.run(art.gather_trajectories((rollout(error) for error in errors), max_exceptions=2))
    statuses = sorted((body["status"], body["reason"]) for body in gateway.bodies("/finish"))
    assert statuses == [
        ("agent_error", "ValueError: bad parse"),
        ("infra_error", "ConnectionResetError: gone"),
    ]
    assert gateway.bodies("/reward") == []  # never a reward of 0


def test_choices_keep_their_token_fields(model: art.TrainableModel[Any, Any]) -> None:
    async def ask() -> Any:
        answer = await model.openai_client().chat.completions.create(model="m", messages=MESSAGES)
        return answer.choices[0]

    choice = asyncio.run(ask())
    assert choice.token_ids == [7]
    assert choice.model_dump()["art"]["version"] == "p/m@0"


# -- sessions


def test_a_session_is_open_for_its_block_and_gives_a_trajectory(
    gateway: FakeGateway, model: art.TrainableModel[Any, Any]
) -> None:
    async def run() -> art.Trajectory:
        async with art.rollout(model, scenario_id="s", member=2, limits={"max_calls": 3}) as session:
            assert session.base_url == f"{gateway.url}/r/{session.rollout_id}/v1"
            assert session.env["OPENAI_BASE_URL"] == session.base_url
            await session.openai_client().chat.completions.create(model="gpt-4o", messages=MESSAGES)
            await model.openai_client().chat.completions.create(model="gpt-4o", messages=MESSAGES)
            session.reward = 0.5
        return session.trajectory

    trajectory = asyncio.run(run())
    [opened] = gateway.bodies("/api/v1/rollouts")
    assert (opened["model"], opened["purpose"], opened["scenario_id"]) == ("p/m", "train", "s")
    assert (opened["member"], opened["limits"]["max_calls"]) == (2, 3)
    by_url, by_header = gateway.headers("/v1/chat/completions")
    assert by_url["authorization"] == "Bearer art-scoped"
    assert by_header["x-art-rollout"] == trajectory.rollout_id
    assert [body["reward"] for body in gateway.bodies("/reward")] == [0.5]
    assert [body["status"] for body in gateway.bodies("/finish")] == ["finished"]
    assert (trajectory.selects_rollout, trajectory.reward) == (True, 0.5)
    assert trajectory.messages() == [*MESSAGES, {"role": "assistant", "content": "yes"}]


def test_the_same_block_without_async_also_inside_a_running_loop(
    gateway: FakeGateway, model: art.TrainableModel[Any, Any]
) -> None:
    def block() -> float | None:
        with art.rollout(model, purpose="evaluate") as session:
            session.sync_openai_client().chat.completions.create(model="m", messages=MESSAGES)
            session.reward = 1
        return session.trajectory.reward

    async def in_loop() -> float | None:
        return block()

    assert block() == asyncio.run(in_loop()) == 1
    assert [body["status"] for body in gateway.bodies("/finish")] == ["evaluated", "evaluated"]


def test_an_exception_ends_the_session_and_goes_on(
    gateway: FakeGateway, model: art.TrainableModel[Any, Any]
) -> None:
    async def run(error: BaseException) -> None:
        async with art.rollout(model):
            raise error

    for error in (ValueError("x"), asyncio.CancelledError(), ServerUnreachable("y")):
        with pytest.raises(type(error)):
            asyncio.run(run(error))
    assert [body["status"] for body in gateway.bodies("/finish")] == [
        "agent_error",
        "infra_error",
        "infra_error",
    ]
    assert gateway.bodies("/reward") == []


# -- training


def test_train_follows_the_job_and_says_what_became_of_it(
    gateway: FakeGateway, model: art.TrainableModel[Any, Any]
) -> None:
    gateway.events = [job_event(1, "queued"), job_event(2, "started"), job_event(3, "succeeded")]
    gateway.job_result = {
        "step": 4,
        "published": True,
        "batch": 1,
        "checkpoint_path": "/c/0004",
        "metrics": {"loss/train": 0.5},
        "trajectories": [
            {"group": 0, "index": 0, "rollout_id": None, "status": "no_calls", "reason": "no choice"}
        ],
    }
    result = asyncio.run(model.backend().train(model, batch(0, 1), learning_rate=1e-4))
    assert (result.step, result.published, result.metrics) == (4, True, {"loss/train": 0.5})
    assert isinstance(result, art.LocalTrainResult)
    assert result.checkpoint_path == "/c/0004"
    assert result.trajectories[0].reason == "no choice"
    [sent] = gateway.bodies("/jobs")
    assert sent["config"]["learning_rate"] == 1e-4
    assert model.get_inference_name() == "m@4"


def test_a_broken_stream_is_resumed_and_an_interrupted_submission_is_one_job(
    gateway: FakeGateway, model: art.TrainableModel[Any, Any]
) -> None:
    gateway.events = [job_event(number) for number in range(1, 4)] + [job_event(4, "succeeded")]
    gateway.stream_breaks_after = 2

    async def run() -> art.TrainResult:
        await model.get_step()
        gateway.half_answers = 1
        return await model.backend().train(model, batch(0, 1))

    assert asyncio.run(run()).step == 1
    assert len(gateway.bodies("/jobs")) == 2
    assert len(gateway.jobs) == 1
    assert [headers.get("last-event-id") for headers in gateway.headers("/events")] == [None, "2"]


def test_a_failed_job_raises_its_error(gateway: FakeGateway, model: art.TrainableModel[Any, Any]) -> None:
    gateway.events = [job_event(1, "failed")]
    gateway.job_error = ParityFailed("they differ", cause="the template", hint="see").to_dict()
    with pytest.raises(ParityFailed, match="they differ"):
        asyncio.run(model.train(batch(0, 1)))
    assert gateway.bodies("/log") == []


def test_a_train_call_has_a_deadline_and_cancels_its_job(gateway: FakeGateway) -> None:
    gateway.job_never_ends = True
    backend = art.RemoteBackend(gateway.url, KEY, train_timeout=1.0)
    model: art.TrainableModel[Any, Any] = art.TrainableModel(name="m", project="p", base_model="base")
    model.register(backend)
    with pytest.raises(DeadlineExceeded, match="job0"):
        asyncio.run(backend.train(model, batch(0, 1)))
    assert len(gateway.headers("/cancel")) == 1


def test_cancelling_train_cancels_the_job(gateway: FakeGateway, model: art.TrainableModel[Any, Any]) -> None:
    gateway.job_never_ends = True

    async def run() -> None:
        training = asyncio.create_task(model.train(batch(0, 1)))
        while not gateway.headers("/events"):  # noqa: ASYNC110 - set from another thread
            await asyncio.sleep(0.01)
        training.cancel()
        await training

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())
    assert len(gateway.headers("/cancel")) == 1


def test_model_train_trains_and_logs(gateway: FakeGateway, model: art.TrainableModel[Any, Any]) -> None:
    gateway.job_result = {
        "step": 2,
        "published": True,
        "batch": 1,
        "metrics": {"loss/train": 0.25, "tokens": 3},
    }
    asyncio.run(model.train(batch(0, 1), config=art.TrainConfig(learning_rate=1e-3)))
    [row] = gateway.bodies("/log")
    assert (row["split"], row["step"], row["groups"]) == ("train", 2, [])
    assert row["metrics"] == {
        "train/reward": 0.5,
        "train/reward_std_dev": 0.5,
        "train/exception_rate": 0.0,
        "loss/train": 0.25,
        "train/tokens": 3.0,
    }


def test_log_sends_loose_trajectories_and_exceptions_as_one_group(
    gateway: FakeGateway, model: art.TrainableModel[Any, Any]
) -> None:
    asyncio.run(model.log([art.Trajectory(reward=1), ValueError("x")], metrics={"extra": 2}, step=7))
    [sent] = gateway.bodies("/log")
    assert (sent["split"], sent["step"]) == ("val", 7)
    assert sent["metrics"] == {"val/reward": 1.0, "val/exception_rate": 0.5, "val/extra": 2.0}
    [group] = sent["groups"]
    assert (len(group["trajectories"]), group["exceptions"][0]["message"]) == (1, "x")


def test_delete_checkpoints_keeps_the_latest_and_the_best(
    gateway: FakeGateway, model: art.TrainableModel[Any, Any]
) -> None:
    assert asyncio.run(model.delete_checkpoints()) == [0, 2]
    assert asyncio.run(model.delete_checkpoints("train/reward")) == [0, 1, 2]


def test_the_best_step_is_a_mean_and_ties_go_to_the_later() -> None:
    rows: list[dict[str, object]] = [
        {"step": 1, "r": 1.0},
        {"step": 1, "r": 0.0},
        {"step": 2, "r": 0.6},
        {"step": 3, "r": 0.6},
        {"step": 9, "r": 9.0},
    ]
    assert best_step(rows, "r", {1, 2, 3}) == 3
    assert best_step(rows, "other", {1}) is None


# -- bad input, before anything is sent


def test_what_cannot_be_trained_on_never_reaches_the_server(
    gateway: FakeGateway, model: art.TrainableModel[Any, Any]
) -> None:
    plain: art.Model[Any, Any] = art.Model(name="gpt", project="p")
    backend = model.backend()
    for groups, kind in (([art.Trajectory(reward=1)], InvalidInput), ([3], InvalidInput)):
        with pytest.raises(kind):
            asyncio.run(backend.train(model, groups))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="not trainable"):
        asyncio.run(backend.train(plain, batch(0, 1)))
    assert gateway.requests == []


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"learning_rat": 1e-5}, ConfigError, "did you mean learning_rate"),
        ({"zzz": 1}, ConfigError, "no option 'zzz'"),
        ({"plot_tensors": True}, UnsupportedOption, "RemoteBackend does not support plot_tensors=True"),
        ({"kl_estimator": "k2"}, UnsupportedOption, "kl_estimator='k2' cannot be applied"),
        ({"loss_fn": "dro"}, UnsupportedOption, "RemoteBackend does not support loss_fn='dro'"),
        ({"loss_fn": "dro"}, UnsupportedOption, "leave loss_fn out: cispo"),
        ({"loss_fn": "cispo", "ppo": True}, ConfigError, "loss_fn and ppo mean the same and differ"),
        ({"lr": 1e-5}, ConfigError, "did you mean learning_rate"),
        ({"config": {"learning_rate": 1e-5}}, ConfigError, "config is a dict, not an art.TrainConfig"),
        ({"_config": {"learning_rat": 1e-5}}, ConfigError, "did you mean learning_rate"),
        ({"_config": {"plot_tensors": True}}, UnsupportedOption, "plot_tensors=True"),
        ({"_config": {"loss_fn": "dro"}}, UnsupportedOption, "leave loss_fn out"),
        ({"_config": [1]}, ConfigError, "_config is a list"),
        ({"epsilon": 0.1, "_config": {"epsilon": 0.3}}, ConfigError, "epsilon is given twice, and differs"),
        ({"learning_rate": -1}, ConfigError, "learning_rate"),
        ({"scale_rewards": True, "normalize_advantages": False}, ConfigError, "differ"),
    ],
)
def test_an_option_that_cannot_be_applied_is_refused_by_name(
    gateway: FakeGateway,
    model: art.TrainableModel[Any, Any],
    options: dict[str, Any],
    kind: type[ConfigError],
    said: str,
) -> None:
    with pytest.raises(kind) as caught:
        asyncio.run(model.backend().train(model, batch(0, 1), **options))
    assert said in str(caught.value)
    assert gateway.requests == []


def test_openpipe_art_options_that_change_nothing_are_taken() -> None:
    taken = train_config(
        {
            "learning_rate": 5e-6,
            "loss_fn": "ppo",
            "scale_rewards": False,
            "kl_penalty_coef": 0.0,
            "advantage_balance": 0,
            "importance_sampling_level": "token",
            "save_checkpoint": False,
            "verbose": True,
            "packed_sequence_length": 2048,
            "_config": {"max_grad_norm": 0.5, "precalculate_logprobs": False, "epsilon_high": 0.4},
        },
        "LocalBackend",
        art.TrainConfig(epsilon=0.3, normalize_advantages=True),
    )
    assert (taken.learning_rate, taken.normalize_advantages, taken.epsilon) == (5e-6, False, 0.3)
    assert (taken.max_grad_norm, taken.epsilon_high) == (0.5, 0.4)


def test_every_option_of_openpipe_arts_train_reaches_the_configuration() -> None:
    options = {
        "loss_fn": "cispo",
        "kl_penalty_coef": 0.1,
        "kl_penalty_reference_step": 0,
        "epsilon": 0.9,
        "epsilon_high": 3.0,
        "advantage_balance": 0.5,
        "importance_sampling_level": "geometric_average",
        "max_negative_advantage_importance_sampling_weight": 2.0,
        "mask_prob_ratio": True,
        "kimi_k2_tau": 0.1,
        "precalculate_logprobs": True,
        "truncated_importance_sampling": None,
        "scale_learning_rate_by_reward_std_dev": True,
        "num_trajectories_learning_rate_multiplier_power": 0.5,
    }
    taken = train_config(options, "LocalBackend")
    assert {name: getattr(taken, name) for name in options} == options
    assert train_config({"ppo": False}, "ServerlessBackend").loss_fn == "cispo"


def test_a_train_config_takes_and_refuses_the_same() -> None:
    config = art.TrainConfig(learning_rate=1e-5, plot_tensors=False, grad_accumulation_sequences=None)  # type: ignore[call-arg]
    assert config == art.TrainConfig(learning_rate=1e-5)
    with pytest.raises(UnsupportedOption, match="plot_tensors"):
        art.TrainConfig(plot_tensors=True)  # type: ignore[call-arg]
    with pytest.raises(UnsupportedOption, match="leave loss_fn out"):
        art.TrainConfig(loss_fn="dro")
    with pytest.raises(ValueError, match="no option 'lr'; did you mean learning_rate"):
        art.TrainConfig(lr=1)  # type: ignore[call-arg]


def test_what_is_no_group_is_named_with_what_is_expected(
    gateway: FakeGateway, model: art.TrainableModel[Any, Any]
) -> None:
    for wrong, said in ((["x"], "train was given a list of str"), ("x", "a str"), (3, "an? int")):
        with pytest.raises(InvalidInput, match=f"{said}; expected are TrajectoryGroups"):
            asyncio.run(model.train(wrong))  # type: ignore[arg-type]
    assert gateway.requests == []


def test_a_result_is_one_short_line() -> None:
    result = art.LocalTrainResult(
        step=3, batch=4, metrics={f"m{i}": 0.5 for i in range(30)}, checkpoint_path="/c/0003"
    )
    assert repr(result) == (
        "LocalTrainResult(step=3, published=True, batch=4, trajectories=0, metrics=30, "
        "checkpoint_path='/c/0003')"
    )
    assert repr(art.TrainResult(step=0, published=False, reason="no signal")) == (
        "TrainResult(step=0, published=False, reason='no signal', batch=0, trajectories=0, metrics=0)"
    )


@pytest.mark.parametrize("options", [{"in_process": True}])
def test_local_backend_refuses_what_it_would_ignore(options: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedOption, match=next(iter(options))):
        art.LocalBackend(**options)


def test_the_default_folder_is_in_the_repository(tmp_path: Any) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert default_path(inner) == inner / ".art"
    (tmp_path / ".git").mkdir()
    assert default_path(inner) == tmp_path / ".art"


def test_openai_errors_of_infrastructure_are_told_apart() -> None:
    import httpx2

    from art.rollouts.failure import is_infrastructure

    request = httpx2.Request("POST", "http://x/v1")
    lost = openai.ConflictError(
        "ended",
        response=httpx2.Response(409, request=request),
        body={"code": "conflict", "message": "infra_error"},
    )
    bad = openai.BadRequestError("no", response=httpx2.Response(400, request=request), body={"code": "x"})
    assert is_infrastructure(openai.APIConnectionError(request=request))
    assert is_infrastructure(lost)
    assert not is_infrastructure(bad)
    assert not is_infrastructure(ValueError("x"))
    assert not is_infrastructure(openai.ConflictError("c", response=lost.response, body={"code": "conflict"}))
