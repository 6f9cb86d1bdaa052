# SPDX-License-Identifier: Apache-2.0
"""ddpfs exec and Python: the hook that waits for PyTorch changes nothing that a program can see."""

import json
import sys
import textwrap

import pytest

from helpers import tools

REPORT = "import sys, json; print(json.dumps([sys.path, sorted(sys.modules), [str(type(f)) for f in sys.meta_path]]))"


def python(dataset, mountpoint, *arguments, options=(), interpreter=sys.executable, **kwargs):
    return tools.ddpfs("exec", "-q", "-o", "view=all", *options, dataset, mountpoint, "--", interpreter, *arguments, **kwargs)


def write(place, name, text):
    (place / name).parent.mkdir(parents=True, exist_ok=True)
    (place / name).write_text(textwrap.dedent(text))


@pytest.mark.parametrize("switches", [[], ["-I"], ["-S"], ["-E"], ["-s", "-B"]])
def test_a_program_without_torch_sees_what_it_saw(dataset, mountpoint, switches):
    paths, modules, finders = json.loads(python(dataset, mountpoint, *switches, "-c", REPORT).stdout)
    plain = json.loads(python(dataset, mountpoint, *switches, "-c", REPORT, options=["--no-interpose"]).stdout)
    if "-S" in switches:  # nothing runs at the start that could take it out
        paths = [place for place in paths if not place.endswith("tools/python/exec")]
    assert paths == plain[0]
    assert set(modules) - set(plain[1]) <= {"sitecustomize"}
    assert [f for f in finders if "sitecustomize" not in f] == plain[2] and len(finders) <= len(plain[2]) + 1


def test_the_users_sitecustomize_runs(dataset, mountpoint, scratch):
    write(scratch, "own/sitecustomize.py", "import sys; sys.mine = __file__, __name__")
    script = "import sys, sitecustomize; print(*sys.mine, sitecustomize.__file__)"
    file = f"{scratch}/own/sitecustomize.py"
    done = python(dataset, mountpoint, "-c", script, env={"PYTHONPATH": scratch / "own"})
    assert done.stdout.split() == [file, "sitecustomize", file] and done.stderr == ""


def test_a_sitecustomize_that_fails_is_reported_as_by_python(dataset, mountpoint, scratch):
    write(scratch, "own/sitecustomize.py", "raise RuntimeError('mine')")
    said = [python(dataset, mountpoint, "-c", "print('ran')", env={"PYTHONPATH": scratch / "own"}, options=options)
            for options in ([], ["--no-interpose"])]
    assert said[0].stdout == said[1].stdout == "ran\n" and said[0].stderr == said[1].stderr and "mine" in said[0].stderr


def test_the_environment_of_children_keeps_the_users_path(dataset, mountpoint, scratch):
    script = "import os; print(os.environ['PYTHONPATH'])"
    hook = f"{tools.build_dir()}/tools/python/exec"
    assert python(dataset, mountpoint, "-c", script, env={"PYTHONPATH": "/a:/b"}).stdout == f"{hook}:/a:/b\n"
    assert python(dataset, mountpoint, "-c", script, env={"PYTHONPATH": ""}).stdout == f"{hook}\n"
    assert python(dataset, mountpoint, "-c", script, env={"PYTHONPATH": f"{hook}:/a"}).stdout == f"{hook}:/a\n"
    done = python(dataset, mountpoint, "-c", script, env={"PYTHONPATH": "/a"}, options=["--no-interpose"])
    assert done.stdout == "/a\n"


@pytest.mark.parametrize("module", ["", "x = 1", "class _BaseDataLoaderIter:\n    pass", "raise ImportError('broken')"])
def test_a_torch_that_is_not_known_is_left_alone(dataset, mountpoint, scratch, module):
    for name in "torch", "torch/utils", "torch/utils/data":
        write(scratch, f"own/{name}/__init__.py", "")
    write(scratch, "own/torch/utils/data/dataloader.py", module)
    script = """
        import sys
        try:
            import torch.utils.data.dataloader as module
            print(type(module.__loader__).__name__, module.__spec__.loader is module.__loader__, dir(module))
        except ImportError as error:
            print(error)
        """
    said = [python(dataset, mountpoint, "-c", textwrap.dedent(script), env={"PYTHONPATH": scratch / "own"}, options=options)
            for options in ([], ["--no-interpose"])]
    assert said[0].stdout == said[1].stdout and said[0].stderr == said[1].stderr == ""


TRAINER = """
    import hashlib, os, random, sys
    import numpy, torch
    from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

    class Files(Dataset):
        def __init__(self, root):
            self.files = sorted(os.path.join(d, n) for d, _, names in os.walk(root) for n in names)

        def __len__(self):
            return len(self.files)

        def __getitem__(self, i):
            with open(self.files[i], "rb") as file:
                data = file.read()
            return i, float(sum(data)) + random.random() + float(numpy.random.rand()) + torch.rand(())

    class Windows(Files):  # of four files, with a label beside one of them that is drawn at random
        def __len__(self):
            return len(self.files) - 3

        def __getitem__(self, i):
            at = [i, i + 1, i + 2, i + 3, random.randrange(len(self.files))]
            return i, sum(super(Windows, self).__getitem__(k)[1] for k in at)

    class Buckets:
        def __len__(self):
            return 20

        def __iter__(self):
            order = numpy.random.permutation(100)
            random.shuffle(order)
            yield from order.reshape(20, 5)

    class LossFirst:  # the sampler depends on what was trained
        def __len__(self):
            return 100

        def __iter__(self):
            for i in range(100):
                yield int(i * 7 + loss) % 100

    class Stubborn:  # cannot be copied or pickled, and fails in the end
        def __init__(self):
            self.handle = open(__file__)

        def __len__(self):
            return 100

        def __iter__(self):
            self.handle.seek(0)
            for i in range(100):
                yield ord(self.handle.read(1)) % 100
            raise StopAsyncIteration

    torch.manual_seed(1), random.seed(2), numpy.random.seed(3)
    data = (Windows if sys.argv[2] == "windows" else Files)(sys.argv[1])
    digest, loss, workers = hashlib.sha256(), 0, int(sys.argv[3])
    generator = torch.Generator().manual_seed(9)
    options = {"weighted": {"sampler": WeightedRandomSampler(torch.rand(100), 200), "batch_size": 5},
               "buckets": {"batch_sampler": Buckets()},
               "generator": {"shuffle": True, "generator": generator, "batch_size": 5},
               "windows": {"shuffle": True, "batch_size": 5},
               "losses": {"sampler": LossFirst(), "batch_size": 5},
               "stubborn": {"sampler": Stubborn(), "batch_size": None}}[sys.argv[2]]
    loader = DataLoader(data, num_workers=workers, persistent_workers=workers == 4, **options)
    for epoch in range(3):
        try:
            for numbers, values in loader:
                loss += float(values.sum())
                digest.update(repr((numbers.tolist() if hasattr(numbers, "tolist") else numbers, loss)).encode())
        except BaseException as error:
            digest.update(repr(error).encode())
        states = random.getstate(), torch.get_rng_state().tolist(), str(numpy.random.get_state()), generator.get_state().tolist()
        digest.update(repr(states).encode())
    print(digest.hexdigest())
    """


@pytest.mark.parametrize("sampler, workers", [("weighted", 0), ("weighted", 2), ("buckets", 4), ("generator", 2),
                                              ("windows", 0), ("windows", 2), ("losses", 0), ("stubborn", 2)])
def test_losses_and_random_states_are_the_same(dataset, mountpoint, scratch, sampler, workers):
    pytest.importorskip("torch", reason="torch is not installed")
    write(scratch, "train.py", TRAINER)
    arguments = scratch / "train.py", mountpoint, sampler, workers
    said = [python(dataset, mountpoint, "-W", "ignore", *arguments, options=options) for options in ([], ["--no-interpose"])]
    assert said[0].stdout == said[1].stdout and len(said[0].stdout) == 65
    assert said[0].stderr == said[1].stderr == ""
