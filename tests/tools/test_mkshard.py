# SPDX-License-Identifier: Apache-2.0
"""mkshard pack and what reads its datasets: what goes in comes out, whoever takes it out."""

import json
import os
import re
import shutil
import subprocess
import tarfile

import pytest

from helpers import tools
from helpers.private import NOBODY
from tools.shards import facts, failure, files_of, many_files, rich_tree

CONTAINERS = ["tar", "bare"]


@pytest.fixture
def source(scratch):
    return rich_tree(scratch / "source")


@pytest.mark.parametrize("container", CONTAINERS)
def test_extract_gives_back_everything(scratch, source, pack, container):
    dataset = pack(source, f"--container={container}", "--shard-size=300K")
    assert len(list(dataset.glob(f"shard-*.{container}"))) > 3
    tools.mkshard("extract", dataset, scratch / "out")
    assert facts(scratch / "out") == facts(source)


@pytest.mark.parametrize("options, word", [
    (["--group=/(nothing)"], "--group fits no file"),
    (["--sample=key"], "--sample=key fits no file"),
    (["--common=labels.csv"], "--common fits no file"),
    (["--common=*/*"], "every file is common"),
])
def test_rules_that_do_nothing_are_warned_about(scratch, options, word):
    (scratch / "s/d").mkdir(parents=True)
    for i in range(3):
        (scratch / f"s/d/{i}").write_text("x")
    done = tools.mkshard("pack", *options, scratch / "s", scratch / "d")
    assert f"warning: {word}" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("archive", [False, True])
def test_files_that_belong_together_are_told(scratch, archive):
    """WebDataset's pairs, and pictures with their boxes: dealt one by one they come apart."""
    source = scratch / "pairs"
    for i in range(4):
        for kind in ("cls", "jpg"):
            (source / "d").mkdir(parents=True, exist_ok=True)
            (source / f"d/{i:03d}.{kind}").write_text("x")
    if archive:
        subprocess.run(["tar", "cf", scratch / "pairs.tar", "-C", source, "d"], check=True)
        source = scratch / "pairs.tar"
    done = tools.mkshard("pack", source, scratch / "a")
    assert "warning: 'd/000.cls' and 'd/000.jpg' have the same name but are two samples" in done.stderr and "--sample=key" in done.stderr
    for how in ("key", "file"):
        assert tools.mkshard("pack", f"--sample={how}", source, scratch / how).stderr == ""
    for i in range(20):
        (scratch / f"few/{i}.jpg").parent.mkdir(exist_ok=True)
        (scratch / f"few/{i}.jpg").write_text("x")
    (scratch / "few/1.json").write_text("x")
    assert tools.mkshard("pack", scratch / "few", scratch / "b").stderr == ""


def test_extract_spares_the_dataset(scratch, source, pack):
    dataset = pack(source)
    before = files_of(dataset)
    assert "the dataset itself" in failure("extract", dataset, dataset)
    assert files_of(dataset) == before


@pytest.mark.parametrize("container", CONTAINERS)
def test_times_far_away(scratch, pack, container):
    """Before 1970, past the 32-bit clock, past octal tar headers, and past what 64 bits of nanoseconds hold."""
    root = many_files(scratch / "far", n=4)
    for path, when in zip(sorted(root.glob("*/*")), (-1_600_000_000, 2**31, 8**11, 10**10), strict=True):
        os.utime(path, (when, when))
    wanted = facts(root)  # as the file system kept them
    dataset = pack(root, f"--container={container}")
    tools.mkshard("verify", dataset)
    tools.mkshard("extract", dataset, scratch / "out")
    assert facts(scratch / "out") == wanted
    shards = sorted(dataset.glob("shard-*"))
    for shard in shards:
        os.utime(shard, (10**10, 10**10))
    if container == "tar":
        tools.mkshard("index", scratch / "adopted", *shards)
        tools.mkshard("verify", scratch / "adopted")


def test_tar_gives_back_everything(scratch, source, pack):
    dataset = pack(source, "--shard-size=300K")
    out = scratch / "out"
    out.mkdir()
    for shard in sorted(dataset.glob("shard-*.tar")):
        done = tools.run(["tar", "xf", shard, "-C", out])
        assert done.stderr == ""
    assert facts(out) == facts(source)


def test_python_reads_the_shards(source, pack):
    dataset = pack(source, "--shard-size=300K")
    seen = {}
    for shard in sorted(dataset.glob("shard-*.tar")):
        with tarfile.open(shard, "r|") as tar:
            for member in tar:
                assert (member.uid, member.gid, member.uname, member.gname) == (0, 0, "", "")
                if member.isreg():
                    seen[os.fsencode(member.name)] = tar.extractfile(member).read()
    assert seen == {path: data for path, (_, _, _, data) in facts(source).items() if data is not None}


@pytest.mark.parametrize("container", CONTAINERS)
def test_cat_and_ls(source, pack, container):
    dataset = pack(source, f"--container={container}", "--shard-size=300K")
    wanted = {path: data for path, (_, _, _, data) in facts(source).items() if data is not None}
    listed = tools.mkshard("ls", "-0", dataset, text=False).stdout.split(b"\0")
    assert listed.pop() == b"" and sorted(listed) == sorted(wanted)
    for path in wanted:
        assert tools.mkshard("cat", dataset, os.fsdecode(path), text=False).stdout == wanted[path]
    two = tools.mkshard("cat", dataset, "c0/0001.jpg", "labels.csv", text=False).stdout
    assert two == wanted[b"c0/0001.jpg"] + wanted[b"labels.csv"]


def test_json_is_json(source, pack):
    dataset = pack(source)
    wanted = facts(source)
    info = json.loads(tools.mkshard("info", "--json", dataset).stdout)
    n_files = sum(1 for fact in wanted.values() if fact[3] is not None)
    assert (info["files"], info["common_files"], info["shards"]) == (n_files, 1, 1)
    assert info["content_bytes"] == sum(len(fact[3]) for fact in wanted.values() if fact[3] is not None)
    seen = {}
    for line in tools.mkshard("ls", "--json", dataset).stdout.splitlines():
        record = json.loads(line)
        seen[os.fsencode(record["path"])] = (int(record["mode"], 8), record["mtime"], record["size"])
    assert seen == {path: (fact[1], fact[2], len(fact[3])) for path, fact in wanted.items() if fact[3] is not None}
    verified = json.loads(tools.mkshard("verify", "--json", dataset).stdout)
    assert verified["ok"] is True and verified["bad"] == [] and verified["files"] == n_files


def test_ls_and_extract_a_part(scratch, source, pack):
    dataset = pack(source)
    assert len(tools.mkshard("ls", dataset, "c0").stdout.splitlines()) == 16
    assert tools.mkshard("ls", dataset, "c0/0001.jpg", "labels.csv").stdout == "c0/0001.jpg\nlabels.csv\n"
    tools.mkshard("extract", dataset, scratch / "out", "c2", "labels.csv")
    wanted = {path: fact for path, fact in facts(source).items() if path.split(b"/")[0] in (b"c2", b"labels.csv")}
    assert facts(scratch / "out") == wanted
    assert "no 'c9'" in failure("ls", dataset, "c9")
    assert "'c9'" in failure("cat", dataset, "c9")
    assert "is a directory" in failure("cat", dataset, "c0")
    assert "'c9'" in failure("extract", dataset, scratch / "out2", "c9")


def test_ls_in_a_pipe_that_closes(pack, scratch):
    dataset = pack(many_files(scratch / "many", n=5000, size=1))
    pipe = subprocess.run(f"{tools.tool('mkshard')} ls {dataset} | head -1", shell=True, capture_output=True, check=True)
    assert pipe.stderr == b"" and pipe.stdout.count(b"\n") == 1
    full = subprocess.run([tools.tool("mkshard"), "ls", str(dataset)], stdout=open("/dev/full", "w"),
                          stderr=subprocess.PIPE, text=True)
    assert full.returncode == 1 and "standard output" in full.stderr


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("options", [[], ["--sample=key"], ["--group=/([0-9]+)"], ["--no-shuffle"]],
                         ids=["file", "key", "group", "sorted"])
def test_same_input_same_bytes(source, pack, container, options):
    base = ["--shard-size=300K", f"--container={container}", *options]
    first = files_of(pack(source, *base, "--jobs=1", "--memory=1M"))
    assert files_of(pack(source, *base, "--jobs=7")) == first
    if "--no-shuffle" not in options:
        assert files_of(pack(source, *base, "--shuffle-seed=1")) != first


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("options", [[], ["--sample=key"], ["--group=/([0-9]+)", "--common=c?/*.cls"],
                                     ["--no-shuffle", "--common="], ["--shuffle-seed=18446744073709551615"]],
                         ids=["file", "key", "group", "sorted", "seed"])
def test_index_is_rebuilt_from_the_shards(source, pack, container, options):
    dataset = pack(source, "--shard-size=300K", f"--container={container}", *options)
    index = dataset / "index.ddpfs"
    before = index.read_bytes()
    index.unlink()
    tools.mkshard("index", dataset)
    assert index.read_bytes() == before


def test_rebuilding_misses_a_lost_shard(source, pack):
    dataset = pack(source, "--shard-size=300K")
    (dataset / "shard-000001.tar").unlink()
    assert "shard-000001.tar" in failure("index", dataset)


def test_files_of_a_key_stay_together(source, pack):
    dataset = pack(source, "--sample=key", "--shard-size=20K")
    samples = {}
    for line in tools.mkshard("ls", "--json", dataset, "c0").stdout.splitlines():
        record = json.loads(line)
        samples.setdefault(record["path"].split(".")[0], set()).add((record["sample"], record["shard"]))
    assert len(samples) == 8 and all(len(places) == 1 for places in samples.values())
    assert len({sample for places in samples.values() for sample, _ in places}) == 8


def test_grouped_shards_are_webdataset_samples(source, pack):
    dataset = pack(source / "c0", "--sample=key", "--shard-size=100K")
    seen = []
    for shard in sorted(dataset.glob("*.tar")):
        with tarfile.open(shard, "r|") as tar:
            names = [member.name for member in tar if member.isreg()]
        assert len(names) % 2 == 0
        for cls, jpg in zip(names[::2], names[1::2]):
            assert cls.split(".")[0] == jpg.split(".")[0]
            seen.append(cls.split(".")[0])
    assert sorted(seen) == [f"{i:04d}" for i in range(8)] and seen != sorted(seen)


def test_webdataset_reads_the_shards(source, pack):
    wds = pytest.importorskip("webdataset", reason="webdataset is not installed")
    dataset = pack(source / "c0", "--sample=key", "--shard-size=100K")
    urls = [str(shard) for shard in sorted(dataset.glob("*.tar"))]
    seen = {s["__key__"]: (s["jpg"], s["cls"]) for s in wds.WebDataset(urls, shardshuffle=False)}
    assert seen == {f"{i:04d}": ((source / f"c0/{i:04d}.jpg").read_bytes(), (source / f"c0/{i:04d}.cls").read_bytes())
                    for i in range(8)}


def test_common_files(scratch, source, pack):
    def common(dataset):
        records = map(json.loads, tools.mkshard("ls", "--json", dataset).stdout.splitlines())
        return {record["path"] for record in records if record["common"]}

    assert common(pack(source)) == {"labels.csv"}
    assert common(pack(source, "--common=")) == set()
    assert common(pack(source, "--common=*.bin", "--common=c0/*.cls")) == \
        {"big.bin", "block.bin"} | {f"c0/{i:04d}.cls" for i in range(8)}


def test_default_common_leaves_samples_alone(scratch, pack):
    def n_common(dataset):
        return json.loads(tools.mkshard("info", "--json", dataset).stdout)["common_files"]

    texts = scratch / "texts"
    texts.mkdir()
    for i in range(5):
        (texts / f"{i}.txt").write_text(f"text {i}")
    assert n_common(pack(texts)) == 0  # nothing but texts
    for i in range(5):
        (texts / f"{i}.jpg").write_text(f"image {i}")
    assert n_common(pack(texts, "--sample=key")) == 0  # captions
    (texts / "classes.json").write_text("[]")
    assert n_common(pack(texts)) == 6
    assert n_common(pack(texts, "--sample=key", "--common=classes.json")) == 1


ROOT_FILES = {  # what popular datasets have at their roots
    "hub": ["README.md", ".gitattributes", "dataset_infos.json", "metadata.jsonl"],
    "speech": ["README.md", "LICENSE", "testing_list.txt", "validation_list.txt", ".DS_Store"],
    "books": ["README.TXT", "LICENSE.TXT", "SPEAKERS.TXT", "CHAPTERS.TXT"],
    "download": ["readme.html", "CITATION.cff", "SHA256SUMS", "MD5SUMS", "images.zip.md5", "classes.csv"],
}


@pytest.mark.parametrize("files", ROOT_FILES.values(), ids=ROOT_FILES.keys())
@pytest.mark.parametrize("options", [[], ["--sample=key"]], ids=["file", "key"])
def test_what_tells_of_a_dataset_is_no_sample(scratch, pack, files, options):
    root = scratch / "root"
    for i in range(5):
        for kind in ("jpg", "txt", "md"):  # below the root they are samples
            path = root / f"class/{i}.{kind}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{i}")
    for name in files:
        (root / name).write_text(name)
    dataset = pack(root, *options)
    records = list(map(json.loads, tools.mkshard("ls", "--json", dataset).stdout.splitlines()))
    assert {record["path"] for record in records if record["common"]} == set(files)
    assert len(records) == 15 + len(files)
    before = (dataset / "index.ddpfs").read_bytes()
    (dataset / "index.ddpfs").unlink()
    tools.mkshard("index", dataset)
    assert (dataset / "index.ddpfs").read_bytes() == before


def test_documents_beside_texts_that_are_samples(scratch, pack):
    """The README is common, the texts are not; a directory of nothing but documents is a dataset of documents."""
    def common(dataset):
        records = map(json.loads, tools.mkshard("ls", "--json", dataset).stdout.splitlines())
        return {record["path"] for record in records if record["common"]}

    root = scratch / "texts"
    root.mkdir()
    for i in range(5):
        (root / f"{i}.txt").write_text(f"{i}")
    (root / "README.md").write_text("what this is")
    assert common(pack(root)) == {"README.md"}
    for i in range(5):
        (root / f"{i}.txt").rename(root / f"{i}.md")
    assert common(pack(root)) == set()
    for i in range(100):
        (root / f"{i}.md").write_text(f"{i}")
    (root / "d").mkdir()
    (root / "d/x").write_text("x")
    assert common(pack(root)) == set()


def test_several_sources_merge(scratch, pack):
    for name in ("a", "b"):
        (scratch / name / "shared").mkdir(parents=True)
        (scratch / name / "shared" / f"{name}.bin").write_text(name)
    dataset = scratch / "d"
    tools.mkshard("pack", scratch / "a", scratch / "b", dataset)
    assert tools.mkshard("ls", dataset).stdout == "shared/a.bin\nshared/b.bin\n"
    (scratch / "b" / "shared" / "a.bin").write_text("again")
    assert "'shared/a.bin' comes twice" in failure("pack", scratch / "a", scratch / "b", scratch / "d2")


def test_file_list_on_standard_input(scratch, source):
    names = [b"c0/0001.jpg", b"./c1/new\nline", b"c3/not-utf8-\xff\xfe", b"c0"]
    tools.mkshard("pack", "-C", source, "-", scratch / "d", input=b"\0".join(names) + b"\0", text=False)
    listed = tools.mkshard("ls", "-0", scratch / "d", text=False).stdout
    assert listed == b"c0/0001.jpg\0c1/new\nline\0c3/not-utf8-\xff\xfe\0"
    absolute = os.fsencode(source) + b"/c0/0002.jpg"
    tools.mkshard("pack", "-C", source, "-", scratch / "e", input=absolute, text=False)
    assert tools.mkshard("ls", scratch / "e").stdout == "c0/0002.jpg\n"
    assert "--directory" in failure("pack", "-", scratch / "f", input=os.fsdecode(absolute))
    assert "'..'" in failure("pack", "-", scratch / "f", input="../x")
    assert "NUL" in failure("pack", "-C", source, "-", scratch / "f", input="c0/0001.jpg\nc0/0002.jpg\n")
    assert not (scratch / "f").exists() and not (scratch / "f.partial").exists()


def test_symbolic_links_are_followed(scratch, source, pack):
    outside = scratch / "outside"
    outside.mkdir()
    (outside / "x.bin").write_text("x")
    (source / "link.jpg").symlink_to("c0/0003.jpg")
    (source / "class").symlink_to(outside)
    dataset = pack(source)
    assert tools.mkshard("cat", dataset, "link.jpg", text=False).stdout == (source / "c0/0003.jpg").read_bytes()
    assert tools.mkshard("cat", dataset, "class/x.bin").stdout == "x"


def test_replacing_needs_force(scratch, source, pack):
    dataset = pack(source / "c0")
    before = files_of(dataset)
    assert "--force" in failure("pack", source / "c1", dataset)
    assert files_of(dataset) == before
    tools.mkshard("pack", "--force", source / "c1", dataset)
    assert "ünïcode-\u4e2d" in tools.mkshard("ls", dataset).stdout
    assert sorted(p.name for p in scratch.iterdir()) == ["dataset0", "source"]


def test_force_replaces_datasets_only(scratch, source, pack):
    (scratch / "precious").mkdir()
    (scratch / "precious" / "thesis.tex").write_text("ten years")
    assert "no dataset" in failure("pack", "--force", source, scratch / "precious")
    dataset = pack(source / "c0")
    (dataset / "notes.txt").write_text("mine")
    assert "'notes.txt'" in failure("pack", "--force", source, dataset)
    assert (dataset / "notes.txt").exists() and (scratch / "precious" / "thesis.tex").exists()


def test_force_replaces_a_dataset_with_a_quarantine_list(scratch, source, pack):
    """The list is mkshard's own file, and belongs to the old dataset."""
    dataset = pack(source)
    record = json.loads(tools.mkshard("ls", "--json", dataset, "c0/0007.jpg").stdout)
    with open(dataset / "shard-000000.tar", "r+b") as f:
        f.seek(record["offset"])
        f.write(b"\0\0\0\0")
    tools.mkshard("verify", "--quarantine", dataset, check=False)
    assert (dataset / "quarantine.ddpfs").exists()
    tools.mkshard("pack", "--force", source, dataset)
    assert not (dataset / "quarantine.ddpfs").exists()
    tools.mkshard("verify", dataset)


HIDDEN = {".git/config": b"git", ".git/objects/aa": b"object", ".cache/huggingface/x.lock": b"", "c0/.keep/y": b"y", "c0/x": b"x",
          ".gitattributes": b"common"}


@pytest.mark.parametrize("way", ["directory", "tar", "tar.gz", "list"])
def test_hidden_directories_at_the_root_are_left_out(scratch, way):
    """Unless --hidden is given, or a list names their files; below the root a hidden directory is one like any other."""
    root = scratch / "root"
    for path, data in HIDDEN.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    (root / ".git/broken").symlink_to("nowhere") if way == "directory" else None
    source, names = root, None
    if way in ("tar", "tar.gz"):
        source = scratch / f"root.{way}"
        tools.run(["tar", "caf", source, "-C", root, "."])
    elif way == "list":
        source, names = "-", "\0".join(HIDDEN) + "\0"
    listed = ["-C", root] if way == "list" else []
    done = tools.mkshard("pack", *listed, source, scratch / "d", input=names)
    every = set(HIDDEN)
    shown = {path for path in every if not path.startswith((".git/", ".cache/"))}
    assert set(tools.mkshard("ls", scratch / "d").stdout.split()) == (every if way == "list" else shown)
    assert ("hidden directories at the root, such as '." in done.stderr) == (way != "list")
    if way == "directory":
        (root / ".git/broken").unlink()
    done = tools.mkshard("pack", "--hidden", *listed, source, scratch / "all", input=names)
    assert set(tools.mkshard("ls", scratch / "all").stdout.split()) == every and "hidden" not in done.stderr


def test_an_empty_directory_is_no_obstacle(scratch, source):
    (scratch / "d").mkdir()
    tools.mkshard("pack", source / "c0", f"{scratch}/d/")
    tools.mkshard("verify", scratch / "d")


@pytest.mark.parametrize("container", CONTAINERS)
def test_verify_names_every_bad_file(source, pack, container):
    dataset = pack(source, f"--container={container}", "--shard-size=300K")
    records = {}
    for line in tools.mkshard("ls", "--json", dataset).stdout.splitlines():
        record = json.loads(line)
        records[record["path"]] = record
    wanted = {}
    for path, at in (("c0/0001.jpg", 0), ("c1/0007.jpg", 109_999), ("big.bin", 3 * 2**20 + 5)):
        shard = dataset / f"shard-{records[path]['shard']:06d}.{container}"
        with open(shard, "r+b") as f:
            f.seek(records[path]["offset"] + at)
            byte = f.read(1)
            f.seek(-1, os.SEEK_CUR)
            f.write(bytes([byte[0] ^ 1]))
        start = records[path]["offset"] + (3 * 2**20 if path == "big.bin" else 0)
        wanted[path] = (shard.name, start)
    done = tools.mkshard("verify", dataset, check=False)
    assert done.returncode == 1
    for path, (shard, offset) in wanted.items():
        assert f"'{path}': checksum mismatch in '{shard}' at byte {offset}" in done.stderr
    report = json.loads(tools.mkshard("verify", "--json", dataset, check=False).stdout)
    assert {bad["path"]: (bad["shard"], bad["offset"]) for bad in report["bad"]} == wanted
    assert "damaged" in failure("cat", dataset, "c0/0001.jpg")


def test_verify_takes_shards_that_it_may_not_read_for_no_damage(scratch, source, pack):
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root and setpriv")
    dataset = pack(source, "--shard-size=300K")
    shard = sorted(dataset.glob("shard-*"))[1]
    os.chown(shard, 65534, 65534)
    shard.chmod(0o600)
    done = tools.run(["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search",
                      tools.tool("mkshard"), "verify", f"--quarantine={scratch}/list", dataset], check=False)
    assert done.returncode == 1 and not (scratch / "list").exists()
    assert f"{shard.name}': Permission denied; whoever reads" in done.stderr and "1 of " in done.stderr
    assert "no quarantine list" in done.stderr and "are bad" not in done.stderr


def test_verify_sees_lost_and_cut_shards(source, pack):
    dataset = pack(source, "--shard-size=300K")
    os.truncate(dataset / "shard-000001.tar", 1000)
    (dataset / "shard-000002.tar").unlink()
    done = tools.mkshard("verify", dataset, check=False)
    assert done.returncode == 1
    assert "shard-000001.tar" in done.stderr and "shard-000002.tar" in done.stderr
    assert "shard-000000.tar" not in done.stderr
    files = [json.loads(line) for line in tools.mkshard("ls", "--json", dataset).stdout.splitlines()]
    bad = sum(f["shard"] in (1, 2) for f in files)
    assert 1 < bad < len(files) and f"mkshard: {bad} of {len(files)} files are bad" in done.stderr


def test_pack_tells_of_common_files(scratch):
    (scratch / "s/d").mkdir(parents=True)
    (scratch / "s/d/one").write_text("x")
    assert tools.mkshard("pack", scratch / "s", scratch / "d0").stdout == f"{scratch}/d0: 1 file, 1 B, in 1 shard\n"
    (scratch / "s/labels.csv").write_text("x")
    done = tools.mkshard("pack", scratch / "s", scratch / "d1")
    assert done.stdout == f"{scratch}/d1: 2 files, 2 B, in 1 shard; 1 of them common: on every rank, never dealt\n"


def test_packing_datasets_as_files_is_warned_of(scratch):
    """One line, whose advice joins them."""
    for name in ["one", "two"]:
        (scratch / name).mkdir()
        (scratch / name / f"{name}.txt").write_text(name)
        assert "warning" not in tools.mkshard("pack", scratch / name, scratch / f"{name}.ddpfs").stderr
    done = tools.mkshard("pack", "--keep-going", scratch / "one.ddpfs", scratch / "two.ddpfs", scratch / "both", check=False)
    warnings = [line for line in done.stderr.splitlines() if "warning" in line]
    assert len(warnings) == 1 and "one.ddpfs' is a dataset itself" in warnings[0]
    shards = [scratch / f"{name}.ddpfs/shard-000000.tar" for name in ["one", "two"]]
    for joined, how in [("packed", ["pack", *shards, scratch / "packed"]), ("indexed", ["index", scratch / "indexed", *shards])]:
        assert "warning" not in tools.mkshard(*how).stderr
        assert tools.mkshard("ls", scratch / joined).stdout.split() == ["one.txt", "two.txt"]


def test_one_of_a_kind_is_told_as_one(scratch):
    (scratch / "one").mkdir()
    (scratch / "one/a").write_text("a")
    tools.mkshard("pack", scratch / "one", scratch / "one.ddpfs")
    assert ": 1 file in 1 shard, " in tools.mkshard("index", scratch / "one.ddpfs").stdout


def test_indexing_anew_tells_what_is_not_as_it_was(source, pack):
    dataset = pack(source, "--shard-size=300K")
    assert "warning" not in tools.mkshard("index", dataset).stderr
    lines = map(json.loads, tools.mkshard("ls", "--json", dataset).stdout.splitlines())
    victim = next(f for f in lines if f["path"] == "c0/0001.jpg")
    with open(dataset / f"shard-{victim['shard']:06d}.tar", "r+b") as f:
        f.seek(victim["offset"])
        byte = f.read(1)
        f.seek(victim["offset"])
        f.write(bytes([byte[0] ^ 1]))
    done = tools.mkshard("index", dataset)
    assert "warning: 1 of the files of " in done.stderr and "first 'c0/0001.jpg'" in done.stderr


def test_tar_files_without_an_index(scratch, source):
    tools.run(["tar", "cf", scratch / "a.tar", "-C", source, "."])
    assert f"'mkshard index {scratch}'" in failure("ls", scratch)


def test_verify_checks_the_index(source, pack):
    dataset = pack(source)
    index = dataset / "index.ddpfs"
    whole = index.read_bytes()
    for at in range(64, len(whole), len(whole) // 20):
        index.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1:])
        assert tools.mkshard("verify", dataset, check=False).returncode == 1, f"byte {at}"


def test_a_bad_index_is_told_in_a_few_lines(scratch):
    (scratch / "s").mkdir()
    for i in range(300):
        (scratch / f"s/{i}").write_bytes(b"x" * 600)
    tools.mkshard("pack", scratch / "s", scratch / "d")
    index = scratch / "d/index.ddpfs"
    whole = index.read_bytes()
    most = 0
    for at in range(4096, len(whole), 1000):  # some hit the records of all files
        index.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1:])
        said = tools.mkshard("verify", scratch / "d", check=False).stderr.splitlines()
        assert len(said) <= 8 and any("restore index.ddpfs from a copy, or make it anew with 'mkshard index'" in line for line in said), said
        most = max([most] + [int(line.split("and ")[1].split()[0]) for line in said if "whose record is damaged" in line])
    assert most == 297
    index.chmod(0o644)
    tools.mkshard("index", scratch / "d")
    tools.mkshard("verify", scratch / "d")
    for size in (0, 100, 4095):
        index.write_bytes(whole[:size])
        assert "; restore index.ddpfs from a copy, or make it anew with 'mkshard index'" in failure("verify", scratch / "d")
        done = tools.mkshard("index", scratch / "d")
        assert f"the old index of '{scratch}/d' cannot be read (" in done.stderr and done.stderr.count("\n") == 1
        tools.mkshard("verify", scratch / "d")


def test_an_index_made_anew_tells_of_what_nothing_can_tell_of_any_more(scratch):
    """One byte of a sample is damaged, and one of the records that would tell: the new index takes the sample as it is."""
    (scratch / "s").mkdir()
    for i in range(300):
        (scratch / f"s/{i:03d}").write_bytes(bytes([i % 256]) * 600)
    tools.mkshard("pack", scratch / "s", scratch / "d")
    index = scratch / "d/index.ddpfs"
    index.chmod(0o644)
    whole = index.read_bytes()
    victim = json.loads(tools.mkshard("ls", "--json", scratch / "d", "123").stdout)
    shard = scratch / f"d/shard-{victim['shard']:06d}.tar"
    shard.chmod(0o644)
    with open(shard, "r+b") as f:
        f.seek(victim["offset"])
        f.write(bytes([123 ^ 1]))

    def damage_index():
        """At the first byte that makes the records of many files unreadable."""
        for at in range(4096, len(whole), 1000):
            index.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1:])
            said = tools.mkshard("verify", scratch / "d", check=False).stderr
            if "more files whose record is damaged" in said:
                return said
        raise AssertionError("no byte of the index hits the records")

    said = damage_index()
    assert "restore index.ddpfs from a copy, or" in said and "damage in the shards can then no longer be found" in said
    damaged = index.read_bytes()
    done = tools.mkshard("index", scratch / "d")
    told = re.search(r"warning: .* so (\d+) of its files \(first '(\d+)'\) cannot be compared with it", done.stderr)
    assert told and int(told[1]) == 300, done.stderr
    assert "all good" in tools.mkshard("verify", scratch / "d").stdout  # as it was warned

    index.write_bytes(damaged[:100])  # nor can an index that cannot even be opened
    assert "cannot be read (" in tools.mkshard("index", scratch / "d").stderr
    index.write_bytes(whole)  # the copy, which comes first in the advice
    assert "'123'" in tools.mkshard("verify", scratch / "d", check=False).stderr
    assert "1 of the files of " in tools.mkshard("index", scratch / "d").stderr
    assert "warning" not in tools.mkshard("index", scratch / "d").stderr


def test_extract_keeps_good_files_of_a_bad_shard(scratch, source, pack):
    dataset = pack(source)
    record = json.loads(tools.mkshard("ls", "--json", dataset, "c0/0007.jpg").stdout)
    with open(dataset / "shard-000000.tar", "r+b") as f:
        f.seek(record["offset"])
        f.write(b"\0\0\0\0")
    assert "c0/0007.jpg" in failure("extract", dataset, scratch / "out")
    wanted = facts(source)
    del wanted[b"c0/0007.jpg"]
    assert facts(scratch / "out") == wanted


def test_extract_stays_inside(scratch, source, pack):
    dataset = pack(source)
    out, victim = scratch / "out", scratch / "victim"
    out.mkdir()
    victim.mkdir()
    (out / "c0").symlink_to(victim)
    (victim / "target").write_text("old")
    (out / "labels.csv").symlink_to(victim / "target")
    done = tools.mkshard("extract", dataset, out, check=False)
    assert done.returncode == 1 and "c0" in done.stderr
    assert [p.name for p in victim.iterdir()] == ["target"] and (victim / "target").read_text() == "old"
    tools.mkshard("extract", "--force", dataset, out, "labels.csv")
    assert not (out / "labels.csv").is_symlink() and (victim / "target").read_text() == "old"


def test_extract_keeps_what_exists(scratch, source, pack):
    dataset = pack(source)
    out = scratch / "out"
    out.mkdir()
    (out / "labels.csv").write_text("mine")
    assert "--force" in failure("extract", dataset, out, "labels.csv")
    assert (out / "labels.csv").read_text() == "mine"


def test_extract_names_the_first_existing_files_only(scratch, source, pack):
    dataset = pack(source)
    tools.mkshard("extract", dataset, scratch / "out")
    n = sum(path.is_file() for path in source.rglob("*"))
    assert n > 11
    for path in (scratch / "out").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes() + b"!")
    done = tools.mkshard("extract", dataset, scratch / "out", check=False)
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 1 and len(lines) == 11
    assert all("exists already" in line for line in lines[:10]) and f" {n} files existed already" in lines[10]


def test_extract_keeps_equal_files_and_replaces_others_when_told(scratch, source, pack):
    """By content: a file of the right size with another byte is not kept, and a right one gets its mode and time."""
    dataset, out = pack(source), scratch / "out"
    tools.mkshard("extract", dataset, out)
    n = sum(path.is_file() for path in source.rglob("*"))
    done = tools.mkshard("extract", dataset, out)
    assert f"{n} of the files existed already, equal by size and checksum; 0 written" in done.stdout
    inode = (out / "big.bin").stat().st_ino
    with open(out / "block.bin", "r+b") as f:
        f.seek(2**20 - 1)
        f.write(b"\xff" if (source / "block.bin").read_bytes()[-1] != 0xff else b"\0")
    os.truncate(out / "c0/0007.jpg", 100)
    os.utime(out / "c0/0001.jpg")
    (out / "c0/0001.jpg").chmod(0o644)
    (out / "c1/0001.jpg").unlink()
    done = tools.mkshard("extract", dataset, out, check=False)
    assert done.returncode == 1 and done.stderr.count("exists already") == 2 and "--force" in done.stderr
    assert f"{n - 3} of the files existed already, equal by size and checksum; 1 written" in done.stdout
    tools.mkshard("extract", "--force", dataset, out)
    assert facts(out) == facts(source) and (out / "big.bin").stat().st_ino == inode


def test_extract_goes_on_in_directories_that_it_made_read_only(scratch, build_dir):
    """A user other than root: a first run has given c0 its mode, a rerun writes a file that is missing there."""
    if os.geteuid() == 0 and not shutil.which("setpriv"):
        pytest.skip("needs setpriv")
    source, out = scratch / "source", scratch / "out"
    for name in ("c0/sub/a", "c0/b", "c1/c"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    for name, mode in ("c0/sub", 0o311), ("c0", 0o555):
        (source / name).chmod(mode)
    tools.mkshard("pack", source, scratch / "d")
    out.mkdir()
    shutil.copy(tools.tool("mkshard"), scratch / "mkshard")
    user = []
    if os.geteuid() == 0:
        for path in scratch, scratch / "mkshard":
            path.chmod(0o755)
        os.chown(out, 65534, 65534)
        user = NOBODY.split()
    extract = [*user, scratch / "mkshard", "extract", scratch / "d", out]
    try:
        tools.run(extract)
        before = facts(out)
        for name in "c0/sub", "c0":
            (out / name).chmod(0o755)
        (out / "c0/sub/a").unlink()
        (out / "c0/b").unlink()
        for name, mode in ("c0/sub", 0o311), ("c0", 0o555):
            (out / name).chmod(mode)
        tools.run(extract)
        assert {path: fact for path, fact in facts(out).items()} == before == facts(source)
    finally:
        for place in source, out:
            for name in "c0", "c0/sub":
                (place / name).chmod(0o755) if (place / name).exists() else None


def test_extract_into_links_is_one_line_a_directory(scratch, source, pack):
    dataset, out = pack(source), scratch / "out"
    (scratch / "victim").mkdir()
    out.mkdir()
    (out / "c0").symlink_to(scratch / "victim")
    (out / "deep").write_text("a file")
    done = tools.mkshard("extract", dataset, out, check=False)
    lines = done.stderr.splitlines()
    assert done.returncode == 1 and len(lines) == 2, done.stderr
    assert "'c0': is a symbolic link, which is not followed: move it away; 16 files below it are left out" in lines[0]
    assert "'deep': is no directory: move it away; 1 file below it is left out" in lines[1]
    wanted = {path: fact for path, fact in facts(source).items() if path.split(b"/")[0] not in (b"c0", b"deep")}
    assert {path: fact for path, fact in facts(out).items() if path not in (b"c0", b"deep")} == wanted
    assert list((scratch / "victim").iterdir()) == []


def on_a_terminal(*argv):
    ours, theirs = os.openpty()
    try:
        done = subprocess.run([str(a) for a in argv], stdout=theirs, stdin=subprocess.DEVNULL, check=True)
        assert done.returncode == 0
        return os.read(ours, 65536)
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize("command", [("mkshard", "ls"), ("mkshard", "ls", "-l"), ("ddpfs", "order")])
def test_no_control_bytes_reach_a_terminal(scratch, pack, command):
    (scratch / "s").mkdir()
    (scratch / "s/b\x1b[31m").write_text("red")
    argv = [tools.tool(command[0]), *command[1:], pack(scratch / "s")]
    said = on_a_terminal(*argv)
    assert b"b\\x1b[31m" in said and b"\x1b" not in said
    assert b"b\x1b[31m" in tools.run(argv, text=False).stdout


def test_wrong_usage(scratch, source):
    for args in (["pack"], ["pack", source], ["pack", "--container=zip", source, "d"], ["pack", "--shard-size=x", "a", "b"],
                 ["pack", "--group=[", source, "d"], ["pack", "--group=nothing", source, "d"], ["pack", "--jobs=0", "a", "b"],
                 ["nonsense"], [], ["cat"], ["cat", "d"], ["verify"], ["extract", "d"]):
        done = tools.mkshard(*args, check=False)
        assert done.returncode == 2 and done.stdout == "" and done.stderr, args
