"""Tests of somebody whose program has several ranks, which ``hwsim.run`` starts."""

import sys

import pytest

import hwsim


def sum_of_ranks(offset):
    """Every rank of a job, in a process of its own."""
    import ringdove

    with ringdove.init() as comm:
        array = ringdove.DeviceArray([comm.rank + offset] * 5000, device=comm.device)
        comm.all_reduce(array)
        comm.synchronize()
        want = comm.size * offset + comm.size * (comm.size - 1) // 2
        assert array.tolist() == [want] * 5000, array.tolist()[:3]
        comm.finalize()
        print(f"sum {want}")


def bandwidth():
    import ringdove

    print(ringdove.device_count(), sys.argv[0].endswith("_call.py"))


def test_ranks_on_two_nodes():
    done = hwsim.run(sum_of_ranks, 10, machine="pcie4 x 2", procs=4).check()
    assert done.by_rank == {rank: "sum 46" for rank in range(4)}
    assert len(done.reports) == 4 and all(report["instructions"] > 0 for report in done.reports)


def test_late_and_disordered_messages_change_nothing():
    for seed in range(2):
        with hwsim.fault("*:delay=300", seed=seed), hwsim.fault("node1/*:reorder=300", seed=seed):
            hwsim.run(sum_of_ranks, 1, machine="pcie4 x 2", procs=2, profile="strict").check()


def test_a_port_that_goes_down_is_an_error_of_the_program():
    with hwsim.fault("node0/*:port-down-after=1", seed=3):
        done = hwsim.run(sum_of_ranks, 1, machine="pcie4 x 2", procs=2)
    assert not done.ok
    assert "port" in done.output and "down" in done.output, done.output
    assert "HWSIM_FAULTS=" in done.command and "seed=3" in done.command
    with pytest.raises(hwsim.RunError, match="repeat with: HWSIM_FAULTS="):
        done.check()


def faulty_while_it_runs():
    """A rank whose GPU has no memory, and whose messages are late and lost, in blocks of it."""
    import ringdove

    def summed():
        array = ringdove.DeviceArray([comm.rank + 1] * 5000, device=comm.device)
        comm.all_reduce(array)
        comm.synchronize()
        assert array.tolist() == [3] * 5000, array.tolist()[:3]

    comm = ringdove.init()
    summed()
    with hwsim.fault_here(f"gpu{comm.device}:out-of-memory-at=0"):
        with pytest.raises(Exception, match="(?i)memory"):
            ringdove.DeviceArray(100, device=comm.device, shareable=True)
        ringdove.DeviceArray(100, device=comm.device, shareable=True)
    with hwsim.fault_here("*:delay=300", seed=comm.rank):
        summed()
    with pytest.raises(ValueError, match="rank0:kill-at=5"):
        with hwsim.fault_here("rank0:kill-at=5"):
            pass
    summed()
    with hwsim.fault_here("*:port-down-after=0"):
        with pytest.raises(ringdove.Error) as raised:
            summed()
    print(f"no port: {raised.value}")
    comm.abort()


def test_a_program_turns_faults_on_and_off():
    done = hwsim.run(faulty_while_it_runs, machine="pcie4 x 2", procs=2).check()
    assert all("no port: " in text for text in done.by_rank.values()), done.output
    assert "port" in done.output and "down" in done.output, done.output
    with pytest.raises(RuntimeError, match="not on virtual hardware"):
        with hwsim.fault_here("*:delay=300"):
            pass


def test_one_process_and_commands():
    assert hwsim.run(bandwidth, machine="dgx1v").check().output == "8 True\n"
    code = "import sys; print(sys.argv[1:]); sys.exit(5)"
    done = hwsim.run([sys.executable, "-c", code], "a b")
    assert (done.returncode, done.output) == (5, "['a b']\n")


def test_what_cannot_be():
    with pytest.raises(ValueError, match="no function that its file names"):
        hwsim.run(lambda: None)
    with pytest.raises(TimeoutError, match="not over after 1 s"):
        hwsim.run([sys.executable, "-c", "import time; time.sleep(60)"], timeout=1)
    with hwsim.fault("hwsim0:no-such-fault"):
        done = hwsim.run(sum_of_ranks, 1, machine="pcie4 x 2", procs=2)
    assert not done.ok and "no-such-fault" in done.output


def test_every_seed_is_a_run():
    from ringdove import testing

    options = {"machine": "pcie4 x 2", "faults": ["*:delay=50"], "seeds": range(2)}
    seen = testing.on_ranks(sum_of_ranks, 2, count=2, **options)
    assert [sorted(text.splitlines()) for text in seen] == [["[0] sum 5", "[1] sum 5"]] * 2
    with pytest.raises(hwsim.RunError, match="sum_of_ranks"):
        testing.on_ranks(sum_of_ranks, "no number", count=2)
