# SPDX-License-Identifier: Apache-2.0
"""Device batches through the Python package: device_batches.py DATASET SOURCE.  Run by test_python_cuda.py in a process of
its own, whose loader finds the stand-in driver or a real one; "device" bytes are looked at by the driver's own copies."""

import ctypes
import gc
import sys
from pathlib import Path

import ddpfs
from ddpfs import _dlpack

HOST_MEMORY = "64M"


class Driver:
    """Copies device memory back, as a consumer's kernel on `stream` would read it."""

    def __init__(self):
        self.lib = ctypes.CDLL("libcuda.so.1")
        self.standin = hasattr(self.lib, "standin_live")
        self.context = ctypes.c_void_p()
        self.ok(self.lib.cuInit(0))
        self.ok(self.lib.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), 0))
        self.ok(self.lib.cuCtxPushCurrent_v2(self.context))

    @staticmethod
    def ok(result):
        assert result == 0, f"CUDA result {result}"

    def stream(self):
        stream = ctypes.c_void_p()
        self.ok(self.lib.cuStreamCreate(ctypes.byref(stream), 1))
        return stream.value

    def read(self, address, size, stream):
        buf = ctypes.create_string_buffer(size + 1)
        self.ok(self.lib.cuMemcpyDtoHAsync_v2(buf, ctypes.c_uint64(address), ctypes.c_size_t(size), ctypes.c_void_p(stream)))
        self.ok(self.lib.cuStreamSynchronize(ctypes.c_void_p(stream)))
        return buf.raw[:size]

    def clear(self, address, size, stream):
        self.ok(self.lib.cuMemsetD8Async(ctypes.c_uint64(address), 0, ctypes.c_size_t(size), ctypes.c_void_p(stream)))
        self.ok(self.lib.cuStreamSynchronize(ctypes.c_void_p(stream)))


def unpack(capsule):
    """What a consumer finds in a capsule; renames it, as consumers must."""
    api = ctypes.pythonapi
    api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", api))
    address = get(capsule, b"dltensor")
    assert api.PyCapsule_SetName(capsule, USED) == 0
    return _dlpack._Managed.from_address(address), address


USED = b"used_dltensor"


def batches_are_device_memory_with_the_sources_bytes(driver, dataset, files):
    stream = driver.stream()
    stage = ddpfs.Stage(dataset, batch=11, memory=HOST_MEMORY, backend="cuda:0")
    seen = {}
    for batch in stage:
        for i in range(len(batch)):
            array = batch.device(i)
            assert array.__dlpack_device__() == (2, 0)
            managed, address = unpack(array.__dlpack__(stream=stream))
            tensor = managed.tensor
            assert (tensor.device.kind, tensor.device.id, tensor.ndim) == (2, 0, 1)
            assert (tensor.type.code, tensor.type.bits, tensor.type.lanes) == (1, 8, 1)
            size = tensor.shape[0]
            seen[batch.path(i)] = driver.read(tensor.data, size, stream)
            assert bytes(batch[i]) == seen[batch.path(i)]  # and in host memory
            managed.deleter(address)
    assert seen == files
    assert stage.stats()["uploads"] == len(stage) and stage.stats()["backend_device"] == 1


def a_capsule_keeps_the_memory_until_its_consumer_lets_go(driver, dataset, files):
    stream = driver.stream()
    stage = ddpfs.Stage(dataset, batch=5, memory=HOST_MEMORY, backend="cuda:0")
    batch = stage.next()
    path, managed, address = batch.path(3), *unpack(batch.device(3).__dlpack__(stream=stream))
    capsule = batch.device(2).__dlpack__(stream=-1)  # nobody takes this one
    del batch
    for other in stage:
        del other
    assert driver.read(managed.tensor.data, managed.tensor.shape[0], stream) == files[path]
    assert stage.stats()["held_bytes"] > 0
    managed.deleter(address)
    assert len(_dlpack._alive) == 1
    del capsule
    gc.collect()
    assert not _dlpack._alive


def a_batch_is_one_array(driver, dataset, files):
    stream = driver.stream()
    stage = ddpfs.Stage(dataset, batch=4, memory=HOST_MEMORY, backend="cuda:0", subdir="same", order="none")
    batch = stage.next()
    array = batch.device()
    assert array.shape == (4, 700)
    managed, address = unpack(array.__dlpack__(stream=stream))
    assert managed.tensor.ndim == 2
    assert driver.read(managed.tensor.data, 2800, stream) == b"".join(files[batch.path(i)] for i in range(4))
    managed.deleter(address)
    batch = ddpfs.Stage(dataset, batch=30, memory=HOST_MEMORY, backend="cuda:0").next()
    array, offsets = batch.device_flat()
    managed, address = unpack(array.__dlpack__(stream=stream))
    run = driver.read(managed.tensor.data, managed.tensor.shape[0], stream)
    assert all(run[o:o + n] == files[batch.path(i)] for i, (o, n) in enumerate(zip(offsets, batch.lengths)))
    managed.deleter(address)
    try:
        batch.device()
    except ValueError as error:
        assert "differ in length" in str(error)
    else:
        raise AssertionError("files of many lengths as one array")


def what_a_consumer_writes_on_the_device_is_not_in_a_later_epoch(driver, dataset, files):
    """A tensor of GPU memory may be changed in place: each batch is uploaded from the arena anew."""
    stream = driver.stream()
    stage = ddpfs.Stage(dataset, batch=11, memory=HOST_MEMORY, backend="cuda:0")
    for epoch in range(2):
        seen = {}
        for batch in stage:
            for i in range(len(batch)):
                managed, address = unpack(batch.device(i).__dlpack__(stream=stream))
                seen[batch.path(i)] = driver.read(managed.tensor.data, managed.tensor.shape[0], stream)
                driver.clear(managed.tensor.data, managed.tensor.shape[0], stream)
                managed.deleter(address)
        assert seen == files
    assert stage.stats()["changed"] == 0


def torch_takes_them(driver, dataset, files):
    if driver.standin:
        return
    import torch

    stage = ddpfs.Stage(dataset, batch=11, memory=HOST_MEMORY, backend="cuda")
    for batch in stage:
        for i in range(len(batch)):
            tensor = batch.tensor(i)
            assert tensor.is_cuda and tensor.dtype == torch.uint8
            assert bytes(tensor.cpu().numpy()) == files[batch.path(i)]
        flat, offsets = batch.flat()
        assert bytes(flat[offsets[-1]:].cpu().numpy()) == files[batch.path(len(batch) - 1)]


def main():
    dataset, source = map(Path, sys.argv[1:])
    files = {p.relative_to(source).as_posix(): p.read_bytes() for p in source.rglob("*") if p.is_file()}
    driver = Driver()
    for check in (batches_are_device_memory_with_the_sources_bytes, a_capsule_keeps_the_memory_until_its_consumer_lets_go,
                  a_batch_is_one_array, what_a_consumer_writes_on_the_device_is_not_in_a_later_epoch, torch_takes_them):
        check(driver, dataset, files)
        print(check.__name__, flush=True)


if __name__ == "__main__":
    main()
