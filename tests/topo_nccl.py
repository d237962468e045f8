"""What NCCL would find on this machine: its topology detection, in our words, from /sys, NVML and verbs.

    topo_nccl.py EXPORT [DUMP]

compares that with EXPORT, which `ringdove topo --export` has written, and writes it to DUMP. NCCL (2.27)
climbs two levels of /sys for each of its elements, since a switch of PCI Express has two ports on the
way; the narrower of a device's link and of the one above it counts.
"""
import ctypes, os, sys
from xml.etree import ElementTree as tree

GPU, UP, P2P, LINK_STATE = 0x03, 1, 0, 165


def read(path):
    try:
        return open(path).read().strip()
    except OSError:
        return ""


def path_of(bus_id):
    """The way that NCCL takes: the bus of the function, from there its bridge, and down again."""
    path = f"/sys/class/pci_bus/{bus_id[:7]}/../../{bus_id}"
    assert os.path.exists(path), f"{path} does not lead to the device"
    return os.path.realpath(path)


def is_function(name):
    return len(name) == 12 and name[4] == name[7] == ":" and name[10] == "."


class Found:
    """The tree that is being built."""

    def __init__(self):
        self.system = tree.Element("system", version="1")
        self.functions = {}

    def function(self, bus_id):
        if bus_id in self.functions:
            return self.functions[bus_id]
        path = path_of(bus_id)
        attributes = {name: read(f"{path}/{name}") for name in ["class", "vendor", "device"]}
        assert all(attributes.values()), (bus_id, attributes)
        speeds = [read(f"{path}/{at}max_link_speed") for at in ["", "../"]]
        rates = [float(s.split()[0]) if s else float("inf") for s in speeds]
        attributes["link_speed"] = speeds[1] if rates[1] < rates[0] else speeds[0]
        widths = [int(read(f"{path}/{at}max_link_width") or 0) for at in ["", "../"]]
        attributes["link_width"] = str(min(widths))
        above = path.split("/")[-2::-1]
        if is_function(above[0]) and is_function(above[1]):
            parent = self.function(above[1])
        else:
            parent = self.processor(read(f"{path}/numa_node"))
        self.functions[bus_id] = tree.SubElement(parent, "pci", busid=bus_id, **attributes)
        return self.functions[bus_id]

    def processor(self, numa):
        for cpu in self.system:
            if cpu.get("numaid") == numa:
                return cpu
        affinity = read(f"/sys/devices/system/node/node{numa}/cpumap")
        assert affinity, f"no processors of NUMA node {numa}"
        return tree.SubElement(self.system, "cpu", numaid=numa, affinity=affinity, arch="x86_64")


class PciInfo(ctypes.Structure):
    _fields_ = [("legacy", ctypes.c_char * 16), ("numbers", ctypes.c_uint * 5), ("id", ctypes.c_char * 32)]


class Field(ctypes.Structure):
    _fields_ = [("field", ctypes.c_uint), ("scope", ctypes.c_uint), ("times", ctypes.c_longlong * 2),
                ("kind", ctypes.c_uint), ("status", ctypes.c_uint), ("value", ctypes.c_ulonglong)]


def add_gpus(found):
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    assert nvml.nvmlInit_v2() == 0
    count = ctypes.c_uint()
    assert nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
    for number in range(count.value):
        device, info = ctypes.c_void_p(), PciInfo()
        assert nvml.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(device)) == 0
        assert nvml.nvmlDeviceGetPciInfo_v3(device, ctypes.byref(info)) == 0
        major, minor = ctypes.c_int(), ctypes.c_int()
        assert nvml.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor)) == 0
        sm = 10 * major.value + minor.value
        function = found.function(info.legacy.decode().lower())
        gpu = tree.SubElement(function, "gpu", dev=str(number), sm=str(sm))
        most = 4 if sm < 70 else 6 if sm < 80 else 12 if sm < 90 else 18
        ends = {}
        for link in range(most if sm >= 60 else 0):
            number_, remote = ctypes.c_uint(), PciInfo()
            if nvml.nvmlDeviceGetNvLinkCapability(device, link, P2P, ctypes.byref(number_)) or not number_.value:
                continue
            if sm >= 90:
                field = Field(field=LINK_STATE, scope=link)
                answered = nvml.nvmlDeviceGetFieldValues(device, 1, ctypes.byref(field)) == 0
                up = answered and field.status == 0 and field.value & 0xffffffff == UP
            else:
                up = nvml.nvmlDeviceGetNvLinkState(device, link, ctypes.byref(number_)) == 0 and number_.value == UP
            if up and nvml.nvmlDeviceGetNvLinkRemotePciInfo(device, link, ctypes.byref(remote)) == 0:
                to = remote.legacy.decode().lower()
                ends[to] = ends.get(to, 0) + 1
        for to, count_ in ends.items():
            kind = read(f"{path_of(to)}/class")
            tree.SubElement(gpu, "nvlink", target=to, count=str(count_), tclass=kind)


def add_adapters(found):
    verbs = ctypes.CDLL("libibverbs.so.1")
    verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
    verbs.ibv_open_device.restype = ctypes.c_void_p
    verbs.ibv_open_device.argtypes = [ctypes.c_void_p]
    verbs.ibv_get_device_name.restype = ctypes.c_char_p
    verbs.ibv_get_device_name.argtypes = [ctypes.c_void_p]
    verbs.ibv_query_port.argtypes = [ctypes.c_void_p, ctypes.c_uint8, ctypes.c_void_p]
    count = ctypes.c_int()
    devices = verbs.ibv_get_device_list(ctypes.byref(count))
    for index in range(count.value):
        name = verbs.ibv_get_device_name(devices[index]).decode()
        path = os.path.realpath(f"/sys/class/infiniband/{name}/device")
        bus = os.path.basename(os.path.realpath(f"{path}/subsystem"))
        assert bus == "pci", f"{name} is no PCI device to NCCL: {bus}"
        function = found.function(os.path.basename(path))
        port = ctypes.create_string_buffer(64)
        context = verbs.ibv_open_device(devices[index])
        assert context and verbs.ibv_query_port(context, 1, port) == 0
        width = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}[port.raw[43]]
        rate = {1: 2500, 2: 5000, 4: 10000, 8: 10000, 16: 14000, 32: 25000, 64: 50000, 128: 100000}[port.raw[44]]
        nic = tree.SubElement(function, "nic")
        tree.SubElement(nic, "net", name=name, port="1", speed=str(width * rate))


def devices(system, in_switches):
    """Each device: where it hangs, by which links, and what it is. Of a tree with both ports of switches
    every second bridge is left out, and the links on the way are the narrower ones, as NCCL has it."""
    seen = {}

    def rate(function):
        return float(function.get("link_speed", "").split()[0]) if function.get("link_speed") else float("inf")

    def width(function):
        return int(function.get("link_width") or 0)

    def walk(function, above, cpu):
        for below in function.findall("pci"):
            walk(below, [below] + above, cpu)
        if function.find("gpu") is None and function.find("nic") is None:
            return
        way = above[:]
        if in_switches:
            links = list(zip(way, way[1:] + [None]))[::2]
            way = [(f.get("busid"), min(rate(f), rate(a) if a is not None else float("inf")),
                    min(width(f), width(a) if a is not None else 0)) for f, a in links]
        else:
            way = [(f.get("busid"), rate(f), width(f)) for f in way]
        what = {("class", function.get("class"))}
        for gpu in function.findall("gpu"):
            what.add(("gpu", gpu.get("dev"), gpu.get("sm")))
            what |= {("nvlink",) + tuple(link.get(n) for n in ["target", "count", "tclass"]) for link in gpu}
        for net in function.findall("nic/net"):
            what.add(("net",) + tuple(net.get(n) for n in ["name", "port", "speed"]))
        seen[function.get("busid")] = (cpu, way, sorted(what))

    for cpu in system.findall("cpu"):
        for function in cpu.findall("pci"):
            walk(function, [function], cpu.get("numaid"))
    return seen


found = Found()
add_gpus(found)
add_adapters(found)
if len(sys.argv) > 2:
    tree.ElementTree(found.system).write(sys.argv[2])
ours, theirs = devices(tree.parse(sys.argv[1]).getroot(), True), devices(found.system, False)
assert ours.keys() == theirs.keys(), (sorted(ours), sorted(theirs))
for bus_id, device in theirs.items():
    assert ours[bus_id] == device, f"{bus_id}:\nringdove topo {ours[bus_id]}\nNCCL          {device}"
print("same tree:", len(theirs), "devices,", sum(w[0] == "nvlink" for d in theirs.values() for w in d[2]), "ends of NVLinks")
