# SPDX-License-Identifier: Apache-2.0
"""The reference trainers: both learn from one packed dataset what the plain files teach, alone and on several ranks."""

import ctypes
import os
import re
import shutil
import socket
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from helpers import tools  # noqa: E402

EXAMPLES = tools.ROOT / "gpu_stage" / "examples"
EPOCH = re.compile(r"epoch (\d+): mean loss (\d\.\d+), accuracy (\d\.\d+)")
SVG = "{http://www.w3.org/2000/svg}"
RIGHT = 0.93  # of the validation digits at the end; guessing has 0.1


@pytest.fixture(scope="module")
def digits65(tmp_path_factory):
    root = tmp_path_factory.mktemp("digits65")
    tools.run([sys.executable, EXAMPLES / "make_digits.py", root])
    return root


@pytest.fixture
def packed(digits65, pack):
    return pack(digits65)


@pytest.fixture
def env(build_dir):
    return {"DDPFS_STAGE_LIB": build_dir / "gpu_stage" / "libddpfs_stage.so", "OMP_NUM_THREADS": 1,
            "PYTHONPATH": tools.ROOT / "gpu_stage" / "python", "PYTHONDONTWRITEBYTECODE": 1}


def trainer(build_dir):
    return build_dir / "gpu_stage" / "digits_mlp"


def curve(output):
    """[(mean loss, accuracy)] of the epochs, all there and in order."""
    lines = EPOCH.findall(output)
    assert [int(n) for n, _, _ in lines] == list(range(len(lines))) and lines
    return [(float(loss), float(right)) for _, loss, right in lines]


def learned(epochs):
    assert epochs[-1][0] < epochs[0][0] / 3
    assert epochs[-1][1] >= RIGHT


def standin(build_dir):
    return {"LD_LIBRARY_PATH": build_dir / "tests" / "gpu_stage" / "standin"}


TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
SLURM = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")


def ranks(world, argv, env, names=TORCHRUN, code=0):
    """The ranks as a launcher starts them, without one: their outputs."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    started = []
    for rank in range(world):
        own = {**dict(zip(names, (rank, world, rank))), "TRAIN_PORT": port, "MASTER_ADDR": "127.0.0.1"}
        full = {**os.environ, **{k: str(v) for k, v in {**env, **own}.items()}}
        started.append(subprocess.Popen([str(a) for a in argv], env=full, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True, preexec_fn=tools.die_with_parent))
    outputs = [p.communicate(timeout=600)[0] for p in started]
    assert [p.returncode for p in started] == [code] * world, "\n".join(outputs)
    return outputs


def test_the_c_trainer_learns(packed, build_dir):
    learned(curve(tools.run([trainer(build_dir), packed]).stdout))


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_the_c_trainer_learns_on_three_ranks(packed, build_dir, backend):
    """Gradients are summed over the wire, or by (stand-in) NCCL on the second stream."""
    outputs = ranks(3, [trainer(build_dir), f"--backend={backend}", packed],
                    standin(build_dir) if backend == "cuda" else {})
    learned(curve(outputs[0]))
    assert outputs[1] == outputs[2] == ""


@pytest.mark.parametrize("names", [SLURM, OPEN_MPI], ids=["slurm", "mpirun"])
def test_other_launchers_variables_are_understood(packed, build_dir, names):
    argv = [trainer(build_dir), "--epochs=2", packed]
    assert ranks(2, argv, {}, names) == ranks(2, argv, {}, TORCHRUN)


def test_a_gpu_computes_what_the_processor_does(packed, build_dir):
    """Uploads, streams and events change nothing: on the stand-in, whose kernels are the processor's, not one digit."""
    argv = [trainer(build_dir), "--epochs=3"]
    on_cpu = tools.run([*argv, packed]).stdout
    on_gpu = tools.run([*argv, "--backend=cuda", packed], env=standin(build_dir)).stdout
    assert on_gpu == on_cpu
    slow = {**standin(build_dir), "STANDIN_COPY_MB_PER_S": 1}
    assert tools.run([*argv, "--backend=cuda", packed], env=slow).stdout == on_cpu


def test_the_c_trainer_learns_on_a_gpu(packed, build_dir):
    done = tools.run([trainer(build_dir), "--backend=cuda", packed], check=False)
    if "cannot load the NVIDIA driver" in done.stderr or "no CUDA device" in done.stderr:
        pytest.skip("no GPU on this machine")
    assert done.returncode == 0, done.stderr
    learned(curve(done.stdout))


def bars(picture):
    """{row: [(batch, begin, end)]} of a timeline, in milliseconds, in the order drawn."""
    rows = {"copy": [], "compute": [], "all-reduce": []}
    for bar in ElementTree.parse(picture).getroot().iter(SVG + "rect"):
        if bar.get("class"):
            told = re.fullmatch(r"batch (\d+), (.*): (.*) to (.*) ms", bar.find(SVG + "title").text)
            assert told[2] == bar.get("class") and float(bar.get("width")) >= 0
            rows[told[2]].append((int(told[1]), float(told[3]), float(told[4])))
    return rows


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_the_timeline_shows_copies_computing_and_sums(packed, build_dir, scratch, backend, world):
    """Structure, not times: what follows what on one stream, and what waits for another."""
    picture = scratch / "timeline.svg"
    env = standin(build_dir) if backend == "cuda" else {}
    argv = [trainer(build_dir), f"--backend={backend}", "--epochs=2", f"--timeline={picture}", packed]
    output = ranks(world, argv, env)[0]
    rows = bars(picture)
    steps = len(rows["copy"])
    assert steps > 10 and len(curve(output)) == 2
    assert [batch for batch, _, _ in rows["copy"]] == list(range(steps))
    assert [batch for batch, _, _ in rows["compute"]] == [k // 2 for k in range(2 * steps)]
    assert [batch for batch, _, _ in rows["all-reduce"]] == ([k // 2 for k in range(2 * steps)] if world > 1 else [])
    for row in rows.values():
        times = [t for _, begin, end in row for t in (begin, end)]
        assert times == sorted(times)
    for batch, _, arrived in rows["copy"]:
        backward, update = rows["compute"][2 * batch:2 * batch + 2]
        assert arrived <= backward[1]
        if world > 1:
            first, second = rows["all-reduce"][2 * batch:2 * batch + 2]
            assert first[1] >= backward[1] and second[1] >= backward[2] and update[1] >= second[2]
    told = re.search(r"timeline: (.*), rank 0 of (\d): (\d+) batches in \S+ ms, idle on data (\S+)%, between batches "
                     r"otherwise (\S+)%", output)
    assert told[1] == ("processor" if backend == "cpu" else "stand-in 0, not a GPU")
    assert (int(told[2]), int(told[3])) == (world, steps)
    assert 0 <= float(told[4]) <= 100 and 0 <= float(told[5]) <= 100
    assert told[0].removeprefix("timeline: ") in picture.read_text()


def test_the_axis_of_a_timeline_has_round_ticks(packed, build_dir, scratch):
    """1, 2 or 5 times a power of ten apart, from 0, as many as can be read."""
    picture = scratch / "timeline.svg"
    tools.run([trainer(build_dir), "--backend=cpu", "--epochs=1", f"--timeline={picture}", packed])
    texts = ElementTree.parse(picture).getroot().iter(SVG + "text")
    ticks = [t.text.removesuffix(" ms") for t in texts if t.get("class") == "tick"]
    assert ticks[0].strip("0") in ("", ".") and 4 <= len(ticks) <= 13, ticks
    steps = {Decimal(b) - Decimal(a) for a, b in zip(ticks, ticks[1:])}
    assert len(steps) == 1 and steps.pop().normalize().as_tuple().digits in ((1,), (2,), (5,)), ticks


def test_a_timeline_that_cannot_be_written_is_told_at_once(packed, build_dir, scratch):
    done = tools.run([trainer(build_dir), f"--timeline={scratch}/none/t.svg", packed], check=False)
    assert done.returncode == 1 and "cannot write" in done.stderr and "epoch" not in done.stdout


def test_ranks_on_gpus_without_nccl_say_so_and_end(packed, build_dir, scratch):
    try:
        ctypes.CDLL("libnccl.so.2")
    except OSError:
        pass
    else:
        pytest.skip("the loader of this machine finds NCCL")
    (scratch / "libcuda.so.1").symlink_to(build_dir / "tests" / "gpu_stage" / "standin" / "libcuda.so.1")
    for output in ranks(2, [trainer(build_dir), "--backend=cuda", packed], {"LD_LIBRARY_PATH": scratch}, code=1):
        assert "need NCCL (libnccl.so.2" in output and "install it" in output


def test_the_c_trainer_says_what_is_wrong(packed, build_dir, tree, pack):
    run = [trainer(build_dir)]
    assert tools.run(run, check=False).returncode == 2
    assert "usage:" in tools.run([*run, "--backend=tpu", packed], check=False).stderr
    root, _ = tree
    (root / "train").mkdir()
    (root / "train" / "short").write_bytes(b"x")
    (root / "val").mkdir()
    (root / "val" / "short").write_bytes(b"x")
    done = tools.run([*run, pack(root)], check=False)
    assert done.returncode == 1 and "make_digits.py" in done.stderr
    done = tools.run([*run, packed], env={"RANK": 3, "WORLD_SIZE": 2}, check=False)
    assert done.returncode == 1 and "rank 3 of 2" in done.stderr


def test_the_pytorch_trainer_computes_on_batches_what_it_does_on_plain_files(packed, digits65, env):
    """order=torch is DistributedSampler's: equal losses and scores, to every digit printed."""
    pytest.importorskip("torch", reason="torch is not installed")
    argv = [sys.executable, EXAMPLES / "digits_ddp.py", "--epochs", 2]
    plain = tools.run([*argv, "--files", digits65], env=env).stdout
    assert tools.run([*argv, "--dataset", packed], env=env).stdout == plain
    curve(plain)


def test_the_kernels_of_the_ptx_are_those_of_the_source(scratch):
    """mlp.ptx is what the compiler makes of mlp.cu; its header says how."""
    checked_in = (EXAMPLES / "mlp.ptx").read_text()
    names = re.findall(r"X\((\w+)\)", (EXAMPLES / "mlp.h").read_text().split("MLP_KERNELS(X)")[1])
    assert len(names) == 7
    assert re.findall(r"\.visible \.entry kernel_(\w+)\(", checked_in) == names
    nvcc = shutil.which("nvcc") or next((str(p) for p in Path("/usr/local").glob("cuda*/bin/nvcc")), None)
    if nvcc is None:
        pytest.skip("no nvcc on this machine: the names agree, the rest was not compiled anew")
    version = re.search(r"^// (Cuda compilation tools, release .*)$", checked_in, re.M).group(1)
    env = {"LD_PRELOAD": ""}  # a sanitizer's runtime is not for nvcc
    if version not in tools.run([nvcc, "--version"], env=env).stdout:
        pytest.skip("this nvcc is not the one that made mlp.ptx: the names agree, the rest was not compiled anew")
    tools.run([nvcc, "-ptx", "-arch=compute_75", f"-I{tools.ROOT}", "-o", scratch / "mlp.ptx", EXAMPLES / "mlp.cu"], env=env)
    made = re.sub(r"^\.version .*", ".version 6.4", (scratch / "mlp.ptx").read_text(), flags=re.M)
    assert "// SPDX-License-Identifier: Apache-2.0\n" + made == checked_in


@pytest.mark.trainers
@pytest.mark.parametrize("order", ["torch", "full", "chunk"])
def test_the_demo_shows_both_learning(build_dir, order):
    """Two ranks each by torchrun, twenty epochs: C, PyTorch, and PyTorch on the plain files."""
    pytest.importorskip("torch", reason="torch is not installed")
    output = tools.run([EXAMPLES / "demo", "cpu", order], env={"DDPFS_BUILD": build_dir}).stdout
    parts = [curve(part) for part in output.split("== ")[1:]]
    assert len(parts) == 3
    for part in parts:
        learned(part)
        assert part[-1][1] >= parts[2][-1][1] - 0.02
    if order == "torch":
        assert parts[1] == parts[2]


def test_the_declarations_of_nccl_are_those_of_the_real_header(scratch):
    places = [Path("/usr/include"), Path("/usr/local/include"), *Path("/usr/local").glob("cuda*/include"),
              *Path(sys.prefix).glob("lib/python*/site-packages/nvidia/*/include")]
    nccl = next((p for p in places if (p / "nccl.h").exists()), None)
    cuda = next((p for p in places if (p / "cuda_runtime.h").exists()), None)
    if nccl is None or cuda is None:
        pytest.skip("no <nccl.h> with <cuda_runtime.h> on this machine")
    (scratch / "check.c").write_text(NCCL_CHECK)
    tools.run(["cc", "-std=c17", "-Werror", "-fsyntax-only", f"-I{tools.ROOT}", f"-isystem{nccl}", f"-isystem{cuda}",
               scratch / "check.c"])


NCCL_CHECK = """
#include <nccl.h>
#include "gpu_stage/examples/nccl.h"
_Static_assert(sizeof(ncclUniqueId) == sizeof(struct nccl_id) && _Alignof(ncclUniqueId) == _Alignof(struct nccl_id), "id");
_Static_assert((int)ncclSuccess == NCCL_OK && (int)ncclFloat32 == NCCL_FLOAT32 && (int)ncclSum == NCCL_SUM, "numbers");
/* An id is a struct of another name there: it is left out of these, and of one size. */
unsigned (*const destroy)(struct ncclComm *comm) = ncclCommDestroy;
unsigned (*const give_up)(struct ncclComm *comm) = ncclCommAbort;
unsigned (*const sum)(const void *from, void *to, size_t n, unsigned type, unsigned op, struct ncclComm *comm,
        struct CUstream_st *stream) = ncclAllReduce;
unsigned (*const unique)(ncclUniqueId *ret_id) = ncclGetUniqueId;
unsigned (*const join)(struct ncclComm **ret_comm, int world, ncclUniqueId id, int rank) = ncclCommInitRank;
const char *(*const text)(ncclResult_t result) = ncclGetErrorString;
"""
