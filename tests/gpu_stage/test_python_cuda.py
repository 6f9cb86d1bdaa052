# SPDX-License-Identifier: Apache-2.0
"""Device batches through the Python package, and what is said where there is no GPU."""

import ctypes
import ctypes.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numpy", reason="numpy is not installed")

from helpers import datasets, tools  # noqa: E402

HERE = Path(__file__).resolve().parent
CHECKS = 5
BAD_OPEN = """
import sys, ddpfs
try:
    ddpfs.Stage(sys.argv[1], memory="64M", backend=sys.argv[2]).next()
except ddpfs.StageError as error:
    print(error.errno, error)
"""

# Two files take 600 KB of 1 MiB: the second batch has no room while the first is there.
FULL = """
import gc, os, signal, sys, ddpfs
ddpfs.stage.WARN_AFTER_S = 0
ticks, said = [], []
def warn(text, *_, **__):
    said.append(text)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
def tick(*_):  # a signal handler runs while next() waits
    ticks.append(1)
    os.kill(os.getpid(), signal.SIGINT)
ddpfs.stage.warnings.warn = warn
signal.signal(signal.SIGALRM, tick)
signal.signal(signal.SIGINT, signal.default_int_handler)
stage = ddpfs.Stage(sys.argv[1], batch=2, memory="64M", backend="cuda:0", device_memory="1M")
kept = stage.next()
try:
    stage.next()
except KeyboardInterrupt:
    print("interrupted", len(ticks), said)
del kept
gc.collect()
print(stage.next().turn)
"""


def real_driver():
    try:
        return ctypes.CDLL("libcuda.so.1") is not None
    except OSError:
        return False


@pytest.fixture
def python(build_dir):
    """python(standin, arguments...): with the package, the library of this build, and the stand-in driver if wanted."""
    def run(standin, *arguments, **env):
        env |= {"DDPFS_STAGE_LIB": build_dir / "gpu_stage" / "libddpfs_stage.so",
                "PYTHONPATH": tools.ROOT / "gpu_stage" / "python", "PYTHONDONTWRITEBYTECODE": 1}
        if standin:
            env["LD_LIBRARY_PATH"] = build_dir / "tests" / "gpu_stage" / "standin"
        return tools.run([sys.executable, *arguments], env=env).stdout

    return run


@pytest.fixture
def packed(pack, tree):
    root, _ = tree
    (root / "same").mkdir()
    for i in range(9):
        (root / "same" / f"{i}.bin").write_bytes(bytes([i]) * 700)
    return pack(root), root


def test_device_batches_on_the_stand_in_driver(python, packed):
    assert len(python(True, HERE / "device_batches.py", *packed).split()) == CHECKS


def test_device_batches_on_a_gpu(python, packed):
    if not real_driver():
        pytest.skip("no NVIDIA driver on this machine")
    pytest.importorskip("torch", reason="torch is not installed")
    import torch

    if not torch.cuda.is_available():
        pytest.skip("this torch sees no GPU")
    assert len(python(False, HERE / "device_batches.py", *packed).split()) == CHECKS


def test_signals_end_a_wait_for_device_memory(python, pack, scratch):
    datasets.write_tree(scratch / "large", classes=1, per_class=8, sizes=(300_000,))
    first, then = python(True, "-c", FULL, pack(scratch / "large")).splitlines()
    assert first.startswith("interrupted 1 [") and "GPU memory" in first and "let go of batches" in first and then == "2"


def test_without_a_driver_it_says_so(python, packed):
    if real_driver():
        pytest.skip("this machine has an NVIDIA driver")
    said = python(False, "-c", BAD_OPEN, packed[0], "cuda")
    assert "libcuda.so.1" in said and "install the driver, or use the backend cpu" in said


def test_without_a_gpu_it_says_so(python, packed):
    assert "no CUDA device" in python(True, "-c", BAD_OPEN, packed[0], "cuda", STANDIN_DEVICES=0)
    assert "there is no GPU 2, CUDA shows this process 2" in python(True, "-c", BAD_OPEN, packed[0], "cuda:2")


def test_a_driver_that_lacks_a_function_is_told(python, packed, scratch):
    subprocess.run(["cc", "-shared", "-o", scratch / "libcuda.so.1", "-x", "c", "/dev/null"], check=True)
    said = python(False, "-c", BAD_OPEN, packed[0], "cuda", LD_LIBRARY_PATH=scratch)
    assert "libcuda.so.1 has no cuInit: install a newer NVIDIA driver" in said


def test_without_the_library_the_module_says_so(scratch):
    env = {"PYTHONPATH": tools.ROOT / "gpu_stage" / "python", "PYTHONDONTWRITEBYTECODE": 1,
           "DDPFS_STAGE_LIB": scratch / "none.so"}
    done = tools.run([sys.executable, "-c", "import ddpfs; ddpfs.Stage('.').next()"], env=env, check=False)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and last.startswith("ImportError: cannot load") and "none.so" in last
    assert "set DDPFS_STAGE_LIB" in last


def cuda_h():
    """The toolkit's folder of headers, or that of a wheel."""
    places = [*Path("/usr/local").glob("cuda*/include"), Path("/usr/include"),
              *Path(sys.prefix).glob("lib/python*/site-packages/nvidia/*/include")]
    return next((p for p in places if (p / "cuda.h").exists()), None)


# Of CUDA 13.0 on.  The attributes are a struct of another name there.
NEWER = """
#include <stddef.h>
#if CUDA_VERSION >= 13000
#define SAME(ours, theirs) \\
	_Static_assert(offsetof(struct cuda_copy_attributes, ours) == offsetof(CUmemcpyAttributes, theirs), #ours);
SAME(source_order, srcAccessOrder)
SAME(source_hint.type, srcLocHint.type)
SAME(source_hint.id, srcLocHint.id)
SAME(destination_hint, dstLocHint)
SAME(flags, flags)
_Static_assert(sizeof(struct cuda_copy_attributes) == sizeof(CUmemcpyAttributes), "size");
_Static_assert((int)CUDA_SOURCE_IN_STREAM_ORDER == (int)CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, "order");
unsigned (*const copy_many)(unsigned long long *to, unsigned long long *from, size_t *bytes, size_t n,
        CUmemcpyAttributes *attributes, size_t *first, size_t n_attributes, struct CUstream_st *stream) =
        cuMemcpyBatchAsync;
#endif
"""


def test_the_declarations_are_those_of_the_real_header(scratch):
    """Every function of cuda.h of this tree, and every number, against <cuda.h>."""
    folder = cuda_h()
    if folder is None:
        pytest.skip("no <cuda.h> on this machine")
    ours = (tools.ROOT / "gpu_stage" / "cuda.h").read_text()
    numbers = {"CUDA_OK": "CUDA_SUCCESS", "CUDA_HOST_PORTABLE": "CU_MEMHOSTREGISTER_PORTABLE",
               "CUDA_STREAM_NON_BLOCKING": "CU_STREAM_NON_BLOCKING", "CUDA_EVENT_BLOCKING": "CU_EVENT_BLOCKING_SYNC",
               "CUDA_EVENT_NO_TIMING": "CU_EVENT_DISABLE_TIMING", "CUDA_DRIVER_MISMATCH": "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"}
    named = re.findall(r"^\t(CUDA_\w+) = \d+,", ours, re.M)
    assert len(named) > 10
    source = ["#include <cuda.h>", '#include "gpu_stage/cuda.h"',
              # An enum and `unsigned` are compatible, so pointers to such functions are; other differences are errors.
              "#define CHECK(symbol, member, parameters) unsigned(*check_##member) parameters = symbol;",
              "STAGE_CUDA_FUNCTIONS(CHECK)", NEWER]
    source += [f'_Static_assert({name} == (int){numbers.get(name, name.replace("CUDA_", "CUDA_ERROR_", 1))}, "{name}");'
               for name in named]
    (scratch / "check.c").write_text("\n".join(source) + "\n")
    done = subprocess.run(["cc", "-std=c17", "-Werror", "-fsyntax-only", f"-I{tools.ROOT}", f"-isystem{folder}",
                           scratch / "check.c"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
