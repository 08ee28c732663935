"""The rules of ARCHITECTURE.md that a program can check."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Which crates of this workspace each may depend on. ARCHITECTURE.md says why.
MAY_DEPEND_ON = {
    "neuron-ir": set(),
    "neuron-kernels": {"neuron-ir"},
    "neuron-compiler": {"neuron-ir", "neuron-kernels"},
    "neuron-runtime": {"neuron-ir", "neuron-kernels", "neuron-compiler"},
    "neuron-aten": {"neuron-ir"},
    "torch-neuronx": {"neuron-ir", "neuron-kernels", "neuron-compiler", "neuron-runtime", "neuron-aten"},
}
WITHOUT_UNSAFE = {"neuron-ir", "neuron-aten"}
LONGEST_FILE = 800
CSRC_LINES = 3700

SOURCES = sorted(
    path
    for folder in ("crates", "csrc", "python", "tests", "examples")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".rs", ".cpp", ".h", ".py"}
)
RUST = [path for path in SOURCES if path.suffix == ".rs"]
DOCUMENTS = (
    sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").rglob("*.md")) + sorted((ROOT / "examples").rglob("*.md"))
)


def name(path):
    return str(path.relative_to(ROOT))


def manifests():
    return {path.parent.name: tomllib.loads(path.read_text()) for path in (ROOT / "crates").glob("*/Cargo.toml")}


def test_crates_depend_one_way():
    for crate, manifest in manifests().items():
        assert manifest["package"]["name"] == crate
        dependencies = {d for table in ("dependencies", "dev-dependencies") for d in manifest.get(table, {})}
        assert {d for d in dependencies if d in MAY_DEPEND_ON} <= MAY_DEPEND_ON[crate], crate


def test_every_crate_is_in_the_architecture():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert manifests().keys() == MAY_DEPEND_ON.keys()
    for crate in MAY_DEPEND_ON:
        assert f"**`{crate}`**" in text, crate


def test_crates_take_versions_and_lints_from_the_workspace():
    for crate, manifest in manifests().items():
        assert manifest["lints"] == {"workspace": True}, crate
        for table in ("dependencies", "dev-dependencies", "build-dependencies"):
            for dependency, source in manifest.get(table, {}).items():
                assert source.get("workspace"), f"{crate}: {dependency} has a version of its own"


def test_files_stay_short():
    long = {name(path): count for path in SOURCES if (count := len(path.read_text().splitlines())) > LONGEST_FILE}
    assert long == {}


def test_files_are_named_after_what_is_in_them():
    vague = {"utils", "util", "helpers", "helper", "misc", "common", "stuff"}
    assert [name(path) for path in SOURCES if path.stem in vague] == []


def test_the_glue_stays_small():
    lines = sum(len(path.read_text().splitlines()) for path in (ROOT / "csrc").rglob("*") if path.is_file())
    assert lines <= CSRC_LINES


def test_unsafe_is_where_memory_is():
    for path in RUST:
        if path.relative_to(ROOT).parts[1] in WITHOUT_UNSAFE:
            assert not re.search(r"\bunsafe\b(?!_)", code(path)), name(path)


def code(path):
    """The file without comments."""
    return re.sub(r"//[^\n]*", "", path.read_text())


def test_every_unsafe_says_why_it_is_sound():
    missing = []
    for path in RUST:
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines):
            if not re.search(r"\bunsafe (\{|impl)", line.split("//")[0]):
                continue
            above = lines[max(0, number - 8) : number + 1]
            if not any("SAFETY:" in text for text in above):
                missing.append(f"{name(path)}:{number + 1}")
    assert missing == []


def test_nothing_is_left_for_later():
    words = re.compile(
        "|".join(["TO" + "DO", "FIX" + "ME", r"\bXX" + r"X\b", r"\btodo!", "unimplemented!", r"#\[ignore"])
    )
    left = [
        f"{name(path)}:{number}"
        for path in SOURCES
        if path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if words.search(line)
    ]
    assert left == []


def test_text_files_are_clean():
    for path in [*SOURCES, *DOCUMENTS]:
        text = path.read_text()
        assert text.endswith("\n") or not text, name(path)
        assert not re.search(r"[ \t]+$", text, re.MULTILINE), f"{name(path)}: space at the end of a line"
        assert "\t" not in text, f"{name(path)}: a tab"


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), target


def test_python_dependencies_are_pinned():
    direct = re.findall(r"^(\S+)$", re.sub(r"#.*", "", (ROOT / "requirements.txt").read_text()), re.MULTILINE)
    locked = (ROOT / "requirements.lock").read_text().splitlines()
    for requirement in direct:
        assert re.fullmatch(r"[\w.-]+==[\w.]+", requirement)
        assert requirement in locked
