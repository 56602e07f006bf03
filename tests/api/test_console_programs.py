"""Parts of the console that need no browser: what an address or a file can put into a request, and into a command to
copy.
"""

from __future__ import annotations

import json
import random
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cli.evaluation.checks import CRITERION, METRICS, to_criterion
from cli.evaluation.eval_file import to_item
from shared.contract.field_names import flat_names
from shared.contract.presets import contract_paths

CONSOLE = Path(__file__).resolve().parents[2] / "api" / "console"
SCRIPTS = {
    str(path.relative_to(CONSOLE)): path.read_text()
    for path in sorted(CONSOLE.rglob("*.js"))
    if path.parent.name != "vendor"
}
AROUND = """
globalThis.location = { hash: "", origin: "https://mens.example" };
globalThis.history = { replaceState() {} };
globalThis.addEventListener = () => {};
const repeat = setInterval;
globalThis.setInterval = (...given) => repeat(...given).unref(); // Node ends when the expression has been printed
globalThis.localStorage = { getItem: () => null };
globalThis.matchMedia = () => ({ matches: false, addEventListener() {} });
globalThis.document = {
  addEventListener() {},
  querySelector: () => null,
  documentElement: { dataset: {} },
  createElement: () => ({}),
  head: { append: (sheet) => sheet.onload() },
};
const { bodyOf, fileOf, flat, optionsOf, parametersOfFile, parametersOfJob, sourceOf } = await import("./lib/contract.js");
const { paced } = await import("./lib/pace.js");
const { counted, difference, percent, preferredAnswers } = await import("./lib/format.js");
const { gradersOf, itemOf, METRICS } = await import("./lib/evals.js");
const { quoted } = await import("./parts/copy_as.js");
const { blocks } = await import("./screens/playground.js");
const { send } = await import("./lib/client.js");
const of = (text) => bodyOf(new URLSearchParams(text));
const said = (make) => { try { return make(); } catch (error) { return error.constructor.name; } };
"""
"""The page around the modules, as far as they ask for one when they are loaded."""
HOSTILE = ["a b", "x;touch y", "$(id)", "`id`", "it's", "\u001b[2J", "a\nb", "&&id", "=ls", "-o"]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The console's modules, where Node takes them as modules."""
    place = tmp_path_factory.mktemp("console") / "console"
    shutil.copytree(CONSOLE, place)
    (place / "package.json").write_text('{"type": "module"}')
    return place


def run(program: Path, text: str) -> Any:
    """Return what an expression gives, within the modules."""
    node = shutil.which("node")
    assert node, "node runs the console's modules (Debian: apt-get install nodejs)"
    script = program / "test.js"
    script.write_text(f"{AROUND}console.log(JSON.stringify(await (async () => ({text}))()));\n")
    done = subprocess.run([node, str(script)], capture_output=True, text=True, timeout=60, check=False, cwd=program)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def body(program: Path, address: str) -> Any:
    return run(program, f"of({json.dumps(address)})")


@pytest.mark.parametrize("name", ["__proto__", "constructor", "prototype"])
@pytest.mark.parametrize(
    "around", ["{}.method=POST", "exec.{}.method=POST", "exec.{0}.{0}.x=1", "data.{}=1", "{}.{}=1"]
)
def test_address_writes_no_prototype(program: Path, name: str, around: str) -> None:
    address = around.replace("{0}", name).replace("{}", name)
    got = run(
        program, f"[of({json.dumps(address)}).contract, ({{}}).method ?? null, ({{}}).x ?? null, Object.method ?? null]"
    )
    assert got == [{}, None, None, None]


@pytest.mark.parametrize("path", ["exec.a b", "Exec.x", "exec..x", "exec.", ".x", "exec.x;y", "exec.$(id)", "exec"])
def test_what_is_not_a_path_of_a_field_is_left_out(program: Path, path: str) -> None:
    assert run(program, f"bodyOf(new URLSearchParams([[{json.dumps(path)}, '1']])).contract") == {}


def test_fields_of_the_address_become_the_contract(program: Path) -> None:
    got = body(program, "name=7&preset=small&exec.epochs=3&data.train_file=file-1&data.template_arguments.Deep=true")
    contract = {"exec": {"epochs": 3}, "data": {"train_file": "file-1", "template_arguments": {"Deep": True}}}
    assert got == {"kind": "finetune", "contract": contract, "hyperparameters": "auto", "name": "7", "preset": "small"}


@pytest.mark.parametrize("text", ["3", "[1]", '"x"', "true"])
def test_a_field_within_a_value_is_left_out(program: Path, text: str) -> None:
    address = f"exec.epochs={text}&exec.epochs.x=1&exec.epochs.x.y=1"
    assert body(program, address)["contract"] == {"exec": {"epochs": json.loads(text)}}


def test_the_first_of_two_values_counts_as_the_form_shows_it(program: Path) -> None:
    assert body(program, "exec.epochs=1&exec.epochs=100")["contract"] == {"exec": {"epochs": 1}}


@pytest.mark.parametrize(
    "text",
    [
        '{"__proto__": {"method": "POST"}}',
        '{"exec": {"__proto__": {"method": "POST"}}}',
        '{"contract": {"exec": {"constructor": {"x": 1}}}}',
        '{"exec": {"a b": 1}}',
        "[1]",
        "null",
        "3",
    ],
)
def test_file_that_is_not_a_contract_is_refused(program: Path, text: str) -> None:
    assert run(program, f"said(() => parametersOfFile({json.dumps(text)}))") == "SyntaxError"


def test_request_has_its_own_options_alone(program: Path) -> None:
    asked = run(
        program,
        """await (async () => {
          const seen = [];
          globalThis.fetch = async (path, options) => { seen.push([path, options.method, options.body ?? null, options.redirect ?? null]); };
          Object.assign(Object.prototype, { method: "POST", json: { evil: 1 }, body: "evil", redirect: "error" });
          await send("/v1/jobs", { headers: {} });
          await send("/v1/me");
          for (const name of ["method", "json", "body", "redirect"]) delete Object.prototype[name];
          await send("/v1/jobs", { method: "POST", json: { kind: "finetune" } });
          return seen;
        })()""",
    )
    assert asked == [
        ["/v1/jobs", "GET", None, None],
        ["/v1/me", "GET", None, None],
        ["/v1/jobs", "POST", '{"kind":"finetune"}', None],
    ]


@pytest.mark.parametrize("text", HOSTILE)
def test_copied_command_has_a_value_as_one_word(program: Path, text: str) -> None:
    given = {"contract": {"artifact": {"alias": text}, "exec": {"epochs": 2}}, "name": text}
    words = shlex.split(run(program, f"optionsOf({json.dumps(given)}, quoted).join(' ')"))
    shown = text.replace("\u001b", "")
    start = ["--alias", shown, "--epochs", "2"]
    if text.startswith("-"):
        start = ["--contract", "o.json"]
    assert words == [*start, "--name", shown]


def test_a_shell_gets_each_copied_value_as_it_is(program: Path) -> None:
    words = run(program, f"{json.dumps(HOSTILE)}.map(quoted).join(' ')")
    got = subprocess.run(["sh", "-c", f"printf '%s\\0' {words}"], capture_output=True, text=True, check=True).stdout
    assert got.split("\0")[:-1] == [text.replace("\u001b", "") for text in HOSTILE]


@pytest.mark.parametrize(
    "path", ["data.template_arguments.x", "data.context_filter", "method.type", "collateral_damage_verified"]
)
def test_copied_command_refers_to_the_file_for_what_is_not_an_option(program: Path, path: str) -> None:
    words = run(program, f"optionsOf(of({json.dumps(f'{path}=1&name=mine&preset=small')}), quoted).join(' ')")
    assert words == "--contract mine.json --name mine --preset small"


def test_every_copied_option_is_one_of_its_field(program: Path) -> None:
    names, other = (
        flat_names(),
        {"quant.base": "--quant", "adapter.continue_from": "--continue", "model.hf_repo": "--model"},
    )
    paths = [path for path in contract_paths() if path != "data.train_file"]
    words = run(program, f"{json.dumps(paths)}.map((path) => optionsOf(of(`${{path}}=3`), quoted)[0])")
    for path, word in zip(paths, words, strict=True):
        if word not in ("--contract", other.get(path), "--no-publish"):
            assert names.get(word.removeprefix("--").replace("-", "_")) == path
    assert words.count("--contract") < len(words) / 3


def test_every_module_loads(program: Path) -> None:
    """A name that is imported and that its module does not have is an error before anything is drawn."""
    modules = [name for name in SCRIPTS if name not in ("app.js", "lib/theme.js")]
    assert run(program, f"(await Promise.all({json.dumps(modules)}.map((name) => import(`./${{name}}`)))).length") > 10


def test_each_command_quotes_what_it_takes_in() -> None:
    """A value within the words of `mens` stands in `quoted()`, alone."""
    commands = {name: [line for line in text.splitlines() if "mens: `mens " in line] for name, text in SCRIPTS.items()}
    taken = {
        (name, part)
        for name, lines in commands.items()
        for line in lines
        for part in line.partition("mens: `mens ")[2].split("${")[1:]
        if not part.startswith(("quoted(", "purpose ?", "chosen === NO_BASE ?"))
    }
    assert sum(map(len, commands.values())) >= 5
    assert not taken


def test_addresses_that_name_a_member_of_the_prototype_are_unknown() -> None:
    """Addresses that name a member of an object's prototype open the page for unknown addresses, and add no curve."""
    assert "Object.hasOwn(SCREENS, name)" in SCRIPTS["app.js"]
    assert 'Object.hasOwn(SERIES, query.get("series") || "")' in SCRIPTS["screens/compare.js"]


def test_keys_of_a_screen_rest_while_a_dialog_is_open() -> None:
    without = {
        name for name, text in SCRIPTS.items() if 'addEventListener("keydown"' in text and "isInDialog()" not in text
    }
    assert not without


def test_a_second_press_is_not_a_second_job() -> None:
    """Each job and receipt that the page asks for has a key of its own."""
    for name in ("screens/new_run.js", "screens/gates.js"):
        calls = [
            line
            for line in SCRIPTS[name].splitlines()
            if 'call("/v1/jobs", {' in line or 'call("/v1/receipts", {' in line
        ]
        assert calls
        assert all('"Idempotency-Key": key' in line for line in calls)


def test_the_same_file_can_be_chosen_again() -> None:
    inputs = {name: text for name, text in SCRIPTS.items() if 'type="file"' in text}
    assert inputs
    for name, text in inputs.items():
        assert text.count('event.target.value = ""') == text.count('type="file"'), name


def test_null_is_a_field_that_was_left_open(program: Path) -> None:
    given = {"artifact": {"alias": None}, "exec": {"epochs": 2, "seed": None}, "data": {"mode": "lenient"}}
    got = run(program, f"parametersOfFile({json.dumps(json.dumps(given))})")
    assert got == {"exec.epochs": "2", "data.mode": '"lenient"'}


@pytest.mark.parametrize("beside", [{}, {"name": "mine"}, {"preset": "small", "domain": "law"}])
def test_downloaded_contract_comes_back_as_the_same_form(program: Path, beside: dict[str, str]) -> None:
    given = {"exec.epochs": "2", "data.template_arguments.Deep": "true", "model.hf_repo": "123"} | beside
    text = json.dumps(list(given.items()))
    assert run(program, f"parametersOfFile(fileOf(bodyOf(new URLSearchParams({text}))))") == given


def test_downloaded_contract_without_a_name_is_its_sections(program: Path) -> None:
    assert json.loads(run(program, "fileOf(of('exec.epochs=2'))")) == {"exec": {"epochs": 2}}


def test_again_takes_what_was_chosen_and_what_a_preset_or_domain_chose(program: Path) -> None:
    job = {
        "name": "again",
        "contract": {
            "model": {"hf_repo": "tiny"},
            "data": {"train_file": "file-1", "template_arguments": {"Deep": True, "n": 2}},
            "exec": {"epochs": 2, "seed": 7, "batch_size": 4, "learning_rate": 0.1, "warmup_steps": None},
            "adapter": {"rank": 8},
        },
    }
    sources = {"data.train_file": "explicit", "data.template_arguments": "explicit", "exec.epochs": "preset"}
    sources |= {
        "exec.seed": "domain",
        "exec.batch_size": "auto",
        "exec.learning_rate": "default",
        "exec.warmup_steps": "explicit",
    }
    chosen = {
        "model.hf_repo": "tiny",
        "data.train_file": "file-1",
        "data.template_arguments.Deep": "true",
        "data.template_arguments.n": "2",
        "exec.epochs": "2",
        "exec.seed": "7",
        "name": "again",
    }
    assert run(program, f"parametersOfJob({json.dumps(job)}, {json.dumps(sources)})") == chosen
    known = {"model.hf_repo": "tiny", "data.train_file": "file-1", "name": "again"}
    assert run(program, f"parametersOfJob({json.dumps(job)}, {{}})") == known


def test_again_of_a_job_without_auto_rules_uses_none(program: Path) -> None:
    """A field that is left out would be decided by them, and the run would be another one."""
    settings = {"epochs": 1, "seed": 7, "batch_size": 8, "grad_accum": 2, "learning_rate": 0.1}
    job = {"contract": {"model": {"hf_repo": "tiny"}, "exec": settings}}
    sources = dict.fromkeys((f"exec.{name}" for name in settings), "default") | {"exec.grad_accum": "ladder"}
    kept = {"model.hf_repo": "tiny", "exec.epochs": "1", "exec.batch_size": "8"}
    kept |= {"exec.grad_accum": "2", "exec.learning_rate": "0.1"}
    assert run(program, f"parametersOfJob({json.dumps(job)}, {json.dumps(sources)})") == kept
    left_open = run(program, f"parametersOfJob({json.dumps(job)}, {json.dumps(sources | {'exec.epochs': 'auto'})})")
    assert left_open == {"model.hf_repo": "tiny"}


def test_a_value_within_a_field_has_the_source_of_the_field(program: Path) -> None:
    sources = {"data.template_arguments": "explicit"}
    paths = ["data.template_arguments.Deep.x", "data.template_arguments", "data.mode", "constructor"]
    got = run(program, f"{json.dumps(paths)}.map((path) => sourceOf({json.dumps(sources)}, path) ?? null)")
    assert got == ["explicit", "explicit", None, None]


def test_a_change_soon_after_the_last_load_is_loaded_later(program: Path) -> None:
    made = run(
        program,
        """await (async () => {
          let made = 0;
          const counts = [];
          const wait = (time) => new Promise((done) => setTimeout(done, time));
          const pace = paced(() => (made += 1), 100);
          pace.ask(); counts.push(made);
          pace.ask(); pace.ask(); counts.push(made);
          await wait(300); counts.push(made);
          pace.ask(); pace.ask(); pace.stop(); counts.push(made);
          await wait(300); counts.push(made);
          return counts;
        })()""",
    )
    assert made == [1, 1, 2, 3, 3]


def test_pairs_are_counted_by_preferred_answer(program: Path) -> None:
    one = {"reference": "base", "pairs": 1, "before": 0, "tuned": 1, "interval": None}
    many = {"reference": "parent", "pairs": 24, "before": 11, "tuned": 23, "interval": [0.25, 0.75]}
    assert run(program, f"[{json.dumps(one)}, {json.dumps(many)}].map(preferredAnswers).concat(counted(0, 'row'))") == [
        "On 1 of 1 pair the tuned model finds the preferred answer more likely, per token; the base, on 0.",
        "On 23 of 24 pairs the tuned model finds the preferred answer more likely, per token; the parent, on 11; difference 25.0 to 75.0 points (95 %).",
        "0 rows",
    ]


def test_differences_are_written_as_people_write_them(program: Path) -> None:
    pairs = [[18.6, 1], [19_601, 1000], [1960, 1], [10, 1], [2, 1], [-1, 1], [1, 1.0001], [0.34, 1], [50, -1], [0, 5]]
    assert run(program, f"{pairs}.map(([value, of]) => difference(value, of))") == [
        "19 times", "20 times", "1,960 times", "+900 %", "+100 %", "\u2212200 %", "the same", "\u221266 %", "+5,100 %", "\u2212100 %",
    ]  # fmt: skip


def test_only_all_is_a_hundred_percent_and_only_nothing_is_zero(program: Path) -> None:
    assert run(program, "[0, 0.0001, 0.1234, 0.9996, 1, 12, null].map(percent)") == [
        "0.0 %", "< 0.1 %", "12.3 %", "> 99.9 %", "100.0 %", "1200.0 %", "\u2013",
    ]  # fmt: skip


def test_checks_become_the_graders_of_the_command_line(program: Path, tmp_path: Path) -> None:
    schema = {"type": "object", "required": ["city"]}
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(schema))
    plain = ["exact", "contains", "icontains", "regex=^a=b$", "json", "compiles=python", "anti_stub=sql"]
    models = ["judge=helper", "better=a/b@c"]
    checks = [*plain, *(f"{metric}=0.5" for metric in METRICS), *models]
    fields = {"expected": "expected", "question": "messages"}
    graders = run(
        program, f"gradersOf({json.dumps([*checks, f'json_schema={json.dumps(schema)}'])}, {json.dumps(fields)})"
    )
    sent = [CRITERION.validate_python(one).model_dump(mode="json", exclude_none=True) for one in graders]
    assert sent == [to_criterion(check) for check in [*checks, f"json_schema={path}"]]
    assert sorted(run(program, "METRICS")) == sorted(METRICS)


def made_rows(count: int) -> list[dict[str, Any]]:
    """Make rows in which each field has a usable value, an empty or a wrong one, or is missing."""
    source = random.Random(5)
    user, answer = {"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Hi."}
    chats = [[user], [user, answer], [answer], [{"role": "developer", "content": "Be brief."}, user, answer], [], None]
    values = {
        **dict.fromkeys(("messages", "turns"), (*chats, "Hello?", ["Hello?"], [user, None], [{"content": "Hello?"}])),
        **dict.fromkeys(("prompt", "instruction", "input", "context", "system"), ("Say it.", "", None, 7, ["Say it."])),
        **dict.fromkeys(("response", "output", "completion"), ("It.", "", None, 7)),
        "expected": ["It.", None],
        "label": [True, False, None],
        "item": [{"prompt": "Say it."}, {}, "Say it."],
        "sample": [{"output_text": "It."}],
    }
    rows = []
    for _ in range(count):
        names = source.sample(list(values), source.randint(0, 5))
        rows.append({name: source.choice(values[name]) for name in names})
    return rows


def test_rows_become_the_items_of_the_command_line(program: Path) -> None:
    rows = made_rows(4000)
    items = run(program, f"{json.dumps(rows)}.map(itemOf)")
    differences = [(row, item, to_item(row)) for row, item in zip(rows, items, strict=True) if item != to_item(row)]
    assert not differences, f"{len(differences)}, e.g. {differences[:3]}"
    assert sum("expected" in item and "expected" not in row for row, item in zip(rows, items, strict=True)) > 100


@pytest.mark.parametrize(
    "text", ["", "short", "x" * 50_000, "word " * 20_000, "a line of words\n" * 9000, "\n" + "y" * 40_000]
)
def test_long_answer_is_laid_out_in_parts(program: Path, text: str) -> None:
    parts = run(program, f"blocks({json.dumps(text)})")
    assert "".join(parts) == text
    assert all(0 < len(part) <= 16_001 for part in parts)
    assert len(parts) <= len(text) // 15_900 + 2
    if " " in text:
        assert all(part[-1] in " \n" for part in parts[:-1])


def test_no_change_is_dropped_for_coming_early() -> None:
    assert not [name for name, text in SCRIPTS.items() if re.search(r"Date\.now\(\) - last\b", text)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        # Another tenant's alias: no roll-back, neither of the last move nor to a version, and its version is not one's own.
        ("screens/gates.js", "disabled=${!!missing || isForeign || (moves.length < 2 && !!now)}"),
        ("screens/gates.js", "h(Moves, { moves, missing: missing || foreign,"),
        ("screens/gates.js", "useState(!alias ? undefined : alias.tenant === caller.value.tenant ? alias.version : 0)"),
        ("screens/gates.js", "!!refused || isBusy}"),
        # Of pairs, the measure that preference tuning is for.
        ("screens/run.js", "evaluation.preferred && html`<p>${preferredAnswers(evaluation.preferred)}</p>`"),
        # What failed is said, with a way on: a comparison of other runs, each curve, a start from a job.
        ("screens/compare.js", "${isFailed && !isCurrent && h(Failure, { error, retry,"),
        ("screens/compare.js", "${failed.map((one) => h(Failure, {"),
        ("screens/new_run.js", "start.error ? h(Failure, { error: start.error, retry: start.retry,"),
    ],
)
def test_screen_knows_the_case(name: str, text: str) -> None:
    assert text in SCRIPTS[name]
