# SPDX-License-Identifier: Apache-2.0
"""Gives device memory to other libraries, by DLPack capsules (https://dmlc.github.io/dlpack) of kind kDLCUDA."""

import ctypes
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p
from ctypes import pythonapi

CUDA = 2  # kDLCUDA
_UINT = 1  # kDLUInt
_NAME = b"dltensor"


class _Device(Structure):
    _fields_ = [("kind", c_int32), ("id", c_int32)]


class _Type(Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class _Tensor(Structure):
    _fields_ = [("data", c_void_p), ("device", _Device), ("ndim", c_int32), ("type", _Type),
                ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)), ("byte_offset", c_uint64)]


class _Managed(Structure):
    pass


_Deleter = CFUNCTYPE(None, c_void_p)
_Managed._fields_ = [("tensor", _Tensor), ("context", c_void_p), ("deleter", _Deleter)]

_alive = {}  # address of a _Managed -> what must live until its consumer calls the deleter


@_Deleter
def _delete(address):
    _alive.pop(address, None)


@_Deleter
def _capsule_gone(capsule):  # nobody took it (a consumer renames it), so it is deleted here
    if pythonapi.PyCapsule_IsValid(c_void_p(capsule), _NAME):
        _alive.pop(pythonapi.PyCapsule_GetPointer(c_void_p(capsule), _NAME), None)


pythonapi.PyCapsule_IsValid.argtypes = [c_void_p, c_char_p]
pythonapi.PyCapsule_GetPointer.argtypes = [c_void_p, c_char_p]
pythonapi.PyCapsule_GetPointer.restype = c_void_p
pythonapi.PyCapsule_New.argtypes = [c_void_p, c_char_p, _Deleter]
pythonapi.PyCapsule_New.restype = ctypes.py_object
for _callback in (_delete, _capsule_gone):  # consumers may release memory while the interpreter ends
    pythonapi.Py_IncRef(ctypes.py_object(_callback))


class DeviceArray:
    """uint8 memory of a batch on a GPU, for torch.from_dlpack, cupy.from_dlpack and others.  It keeps the batch.
    Do not write to it."""

    def __init__(self, held, address, shape):
        self._held = held
        self._address = address
        self.shape = shape

    def __dlpack_device__(self):
        return CUDA, self._held.opened.ordinal

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("a batch is handed over where it is")
        if stream != -1:  # -1: the consumer wants no synchronisation
            self._held.wait(0 if stream in (None, 1) else stream)
        shape = (c_int64 * len(self.shape))(*self.shape)
        tensor = _Tensor(self._address, _Device(*self.__dlpack_device__()), len(shape), _Type(_UINT, 8, 1), shape, None, 0)
        managed = _Managed(tensor, None, _delete)
        address = ctypes.addressof(managed)
        _alive[address] = (managed, shape, self._held)
        return pythonapi.PyCapsule_New(address, _NAME, _capsule_gone)
