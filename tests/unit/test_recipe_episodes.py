import json

import pytest

from sweeper.recipes import chat, episodes, policy_gradient, rollouts
from sweeper.recipes.episodes import Action, Player, Sampled, action_of, shown
from sweeper.recipes.rollouts import Problem, Rollout, Turn
from sweeper.sandbox import Result
from sweeper.sandbox.tasks import Judged
from sweeper.sandbox.tasks.documents import Step, Task, TaskEnvironment, Verifier

END = 3


class Tokenizer:
    """Bytes and three special tokens; the template writes a role, a colon, a text and the end."""

    chat_template = "there is one"
    all_special_ids = (1, 2, END)
    all_special_tokens = ("<end>",)

    def apply_chat_template(self, messages, *, tokenize, add_generation_prompt=False):
        text = "".join(f"{m['role']}:{m['content']}<end>|" for m in messages)
        return text + ("assistant:" if add_generation_prompt else "")

    def __call__(self, texts, *, add_special_tokens):
        return {"input_ids": [self._encode(text) for text in texts]}

    def _encode(self, text):
        tokens = []
        for number, part in enumerate(text.split("<end>")):
            tokens += ([END] if number else []) + list(part.encode())
        return tokens

    def decode(self, tokens, *, skip_special_tokens=False):
        parts = (
            b"" if t == END and skip_special_tokens else b"<end>" if t == END else bytes([t])
            for t in tokens
        )
        return b"".join(parts).decode()


class Place:
    """An environment whose output is the command in angle brackets."""

    root = ""
    built = False

    def __init__(self, rewards=(1.0,)):
        self.commands = []
        self.files = {}
        self._rewards = list(rewards)

    def start(self):
        pass

    def reset(self):
        pass

    def stop(self):
        pass

    def exec(self, command, seconds, keep=0):
        self.commands.append((command, seconds))
        return Result(0, f"<{command}>\n".encode())

    def put(self, files, seconds=0.0):
        self.files |= files

    def get(self, path, most=0, seconds=0.0):
        return str(self._rewards.pop(0)).encode() if path.endswith("reward.txt") else None


def task(tmp_path, *steps):
    verifier = Verifier(())
    made = tuple(Step(name, text, verifier, min_reward=least) for name, text, least in steps)
    return Task(str(tmp_path), "a/b", made, TaskEnvironment(str(tmp_path)))


def play(tmp_path, answers, steps=(("", "Do it.", None),), rewards=(1.0,), agent="command", **most):
    given = {"turns": 9, "tokens": 8, "context": 999, "output": 30} | most
    limits = episodes.Limits(command_seconds=7.0, episode_seconds=60.0, **given)
    tokenizer, place, contexts = Tokenizer(), Place(rewards), []
    made = task(tmp_path, *steps)
    instruction = episodes.instruction(agent, made.steps[0])
    prompt, end = chat.render_prompt(tokenizer, [{"role": "user", "content": instruction}])
    assert end == END

    def sample(turn, context):
        contexts.append(list(context))
        text, ended = answers[turn]
        tokens = [*text.encode(), *([END] if ended else [])]
        return Sampled(tokens, [-0.1 * (turn + 1)] * len(tokens), ended)

    problem = Problem([{"role": "user", "content": instruction}], prompt, "", end, 0, made.name)
    played = Player(tokenizer, agent, limits).play(made, problem, place, sample)
    return played, problem, place, contexts


def test_a_datum_holds_the_tokens_that_were_sampled(tmp_path):
    """Each prompt extends the last one; only sampled tokens have weights and logprobs."""
    answers = [("ls", True), ("ab", False), ("exit", True)]
    played, problem, place, contexts = play(tmp_path, answers)
    rollout = played.rollout
    tokens, places = rollouts.whole(problem.prompt, rollout)
    assert contexts[0] == problem.prompt
    for number in (1, 2):
        assert contexts[number] == tokens[: len(contexts[number])]
    text = Tokenizer().decode(tokens)
    assert text == (
        "user:Do it.<end>|assistant:ls<end>|user:<ls><end>|assistant:ab<end>|user:<ab><end>|"
        "assistant:exit<end>"
    )
    # The model did not end its second answer: that end token was not sampled.
    assert Tokenizer().decode([tokens[place] for place in places]) == "ls<end>abexit<end>"
    assert (played.ended, rollout.correct, len(rollout.turns)) == ("done", True, 3)
    commands = [command for command, _ in place.commands]
    assert [text for text in commands if text in ("ls", "ab", "exit")] == ["ls", "ab"]
    datum = policy_gradient.to_datum(problem.prompt, rollout, [1.0] * len(rollout.tokens))
    weights = datum.loss_fn_inputs["advantages"].to_numpy()
    assert [n + 1 for n, weight in enumerate(weights) if weight] == places
    logprobs = datum.loss_fn_inputs["logprobs"].to_numpy()
    assert [logprobs[n - 1] for n in places] == pytest.approx(rollout.logprobs)
    assert datum.loss_fn_inputs["target_tokens"].to_numpy().tolist() == tokens[1:]
    size, after = rollouts.whole_after(rollout)
    assert [n - size for n in after] == [n - len(tokens) for n in places]


@pytest.mark.parametrize(
    ("most", "ended", "turns"),
    [({"turns": 2}, "max_turns", 2), ({"context": 60}, "context_limit", 2), ({}, "done", 4)],
)
def test_an_episode_ends_at_each_limit(tmp_path, most, ended, turns):
    answers = [("a", True), ("b", True), ("c", True), ("exit", True)]
    played, *_ = play(tmp_path, answers, **most)
    assert (played.ended, len(played.rollout.turns)) == (ended, turns)
    stop = {} if ended == "done" else {f"stop/{ended}": 1.0}
    assert set(played.rollout.turns[-1].metrics) == {"seconds", *stop}


def test_the_steps_of_a_task_run_in_order(tmp_path):
    steps = (("one", "First.", 0.5), ("two", "Second.", None))
    answers = [("a", True), ("exit", True), ("b", True), ("exit", True)]
    played, _, _, contexts = play(tmp_path, answers, steps, rewards=(0.5, 1.0))
    assert played.rollout.reward == 0.75
    assert Tokenizer().decode(contexts[2]).endswith("exit<end>|user:Second.<end>|assistant:")
    played, *_ = play(tmp_path, answers, steps, rewards=(0.4, 1.0))
    assert (played.rollout.reward, len(played.rollout.turns)) == (0.2, 2)


def test_output_cannot_end_a_message(tmp_path):
    *_, contexts = play(tmp_path, [("<end>", False), ("exit", True)])
    assert contexts[1].count(END) == 3  # only those of the template


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ('{"commands": [{"keystrokes": "ls -la\\n", "duration": 2}]}', Action([("ls -la", 2.0)])),
        ('Well: {"commands": [], "task_complete": true} so', Action([], done=True)),
        ("ls", Action([], wrong='no JSON object with "commands"')),
        ('{"commands": "ls"}', Action([], wrong='no JSON object with "commands"')),
        ('{"commands": [1]}', Action([], wrong='each of "commands" needs "keystrokes"')),
        ("{" * 100_000, Action([], wrong='no JSON object with "commands"')),
    ],
)
def test_answers_of_terminus_are_read_as_json(text, action):
    assert action_of("terminus", text) == action


def test_terminus_gets_an_error_for_an_answer_without_json(tmp_path):
    answers = [("ls", True), ('{"commands": [], "task_complete": true}', True)]
    played, _, _, contexts = play(tmp_path, answers, agent="terminus", context=9999)
    assert b'user:[no JSON object with "commands"]' in bytes(contexts[1])
    assert set(played.rollout.turns[0].metrics) == {"parse_error", "seconds"}


def test_long_outputs_are_cut_in_the_middle():
    assert shown(Result(0, b"a\nb\n"), 10) == "a\nb"
    assert shown(Result(1, b""), 10) == "[exit code 1]"
    assert shown(Result(0, b"0123456789ab", 100), 4) == "01\n[... 108 left out ...]\nab"
    assert shown(Result(None, b"x", 0, "timeout"), 10) == "x\n[time is up]"


def test_a_task_reward_is_the_named_one_or_the_mean():
    assert Judged({"a": 1.0, "b": 0.0}, "").reward == 0.5
    assert Judged({"a": 1.0, "reward": 0.2}, "").reward == 0.2
    assert Judged({}, "", "why").reward == 0
    assert Judged({"a": 1.0}, "").meets({"a": 1.0})
    assert not Judged({"a": 1.0}, "").meets({"a": 0.5, "b": 0.1})


def test_metrics_are_counted_per_turn():
    turns = (Turn([], 1, "a", True, "", {}), Turn([5, 6], 2, "bc", True, "", {}))
    rollout = Rollout([7, 8, 9], [-1.0] * 3, "abc", True, 1.0, True, turns)
    metrics = rollouts.metrics_of([rollouts.Group(Problem([], [1, 2, 3, 4], "", 0, 0), [rollout])])
    assert metrics["env/all/total_turns"] == metrics["env/all/turns_per_episode"] == 2
    assert (metrics["env/all/ob_tokens_per_turn"], metrics["env/all/ac_tokens_per_turn"]) == (
        3,
        1.5,
    )


def test_a_summarised_episode_is_trained_in_segments(tmp_path):
    """Each sampled token is in one segment, after the context that it was sampled from."""
    answers = [("aaaa", True), ("bbbb", True), ("did a, b", True), ("exit", True)]
    most = {"context": 260, "summarise": True, "output": 80}
    played, problem, place, contexts = play(tmp_path, answers, **most)
    rollout = played.rollout
    assert played.ended == "done"
    assert [turn.fresh for turn in rollout.turns] == [False, False, False, True]
    assert [command for command, _ in place.commands if len(command) < 5] == ["aaaa", "bbbb"]
    text = bytes(contexts[2]).decode()
    assert text.count("user:") == 3
    assert text.startswith("user:Do it.\x03|assistant:aaaa\x03|user:<aaaa>")
    assert "assistant:bbbb\x03|user:You are about to run out of room" in text
    assert bytes(contexts[3]).decode() == (
        "user:Do it.\n\nWhat has been done so far:\ndid a, b\n\n<bbbb>\x03|assistant:"
    )
    parts = rollouts.segments(problem.prompt, rollout)
    assert [(part.places.start, part.places.stop) for part in parts] == [(0, 19), (19, 24)]
    for part, first, turns in zip(parts, (0, 3), (3, 1), strict=True):
        tokens, places = rollouts.whole(part.prompt, part.rollout)
        assert [tokens[place] for place in places] == rollout.tokens[part.places]
        assert part.rollout.logprobs == rollout.logprobs[part.places]
        assert part.prompt == contexts[first]
        for number in range(first, first + turns):
            assert contexts[number] == tokens[: len(contexts[number])]
    line = json.loads(json.dumps(episodes.document("t", 0, played)))
    assert episodes.from_document(line) == played
    steps = episodes.atif(problem, played, "m", {})["steps"][1:]
    assert [step["metrics"]["prompt_tokens"] for step in steps] == [
        len(context) for context in contexts
    ]
    # With a margin it summarises that much earlier.
    early, *_ = play(tmp_path, answers[1:], **most, margin=60)
    assert ["summary" in turn.metrics for turn in early.rollout.turns] == [False, True, False]
    # Without a summary there is one segment.
    plain, problem, *_ = play(tmp_path, [("ls", True), ("exit", True)])
    ((prompt, same, places),) = rollouts.segments(problem.prompt, plain.rollout)
    assert (prompt, same, places) == (problem.prompt, plain.rollout, slice(0, 8))
    # If even a summary does not fit, the episode ends.
    ended, *_ = play(tmp_path, answers, context=100, summarise=True, output=80)
    assert ended.ended == "context_limit"
