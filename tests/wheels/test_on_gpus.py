"""Tests of somebody who has no GPU, for `pytest --hwsim`."""

import pytest

import ringdove
from ringdove import DeviceArray


@pytest.mark.hwsim_gpus(2)
def test_sums():
    comms = ringdove.init_all([0, 1])
    arrays = [DeviceArray([comm.rank + 1] * 100, device=comm.device) for comm in comms]
    for comm, array in zip(comms, arrays):
        comm.all_reduce(array)
    for comm in comms:
        comm.close()
    assert [array.tolist() for array in arrays] == [[3.0] * 100] * 2


@pytest.mark.hwsim_gpus(8)
def test_eight_gpus():
    assert ringdove.device_count() == 8


@pytest.mark.hwsim_machine("dgx1v", "pcie4")
def test_machines():
    assert ringdove.device_count() in (4, 8)


@pytest.mark.hwsim_nodes(2)
def test_nodes():
    raise AssertionError("there is one")


@pytest.mark.hwsim_faults
def test_faults():
    raise AssertionError("there are none")
