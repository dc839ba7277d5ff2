"""Submissions that look and reach for what is outside: files, people, processes, the network.

Each is a list of attempts. An attempt that works prints a line that begins with WORKED; so does the whole list with
nothing around it, as a test makes sure of. The last line says how many were made.
"""

from __future__ import annotations

import functools
import os
import socket
import sys
import tempfile
from pathlib import Path

import helpers
from submissions import submission
from submissions.chapter import CHAPTER, add_cell

ROOT = Path(helpers.__file__).parents[1]
#: In the environment of whoever grades.
SECRET = "the-secret-of-the-one-who-grades"
WORKED = "WORKED"
#: The name of every file that an attempt tries to leave behind, and of every process.
MARK = "attention_course_was_here"

_TRY = f'''
import ctypes, glob, os, signal, socket, struct, subprocess, sys, tempfile, time
libc = ctypes.CDLL(None, use_errno=True)
made = 0
def attempt(action):
    """An attempt has worked when it returns something."""
    global made
    made += 1
    try: result = action()
    except BaseException: return
    if result: print("{WORKED}", action.__name__, repr(result)[:300])
def read(path, needle=b""):
    with open(path, "rb") as file: content = file.read(1_000_000)
    return content[:80] if needle in content else None
def write(path):
    with open(path, "a") as file: file.write("x")
    return path
def shared():
    from ipykernel import get_connection_file
    try: return os.path.dirname(get_connection_file())
    except RuntimeError: return "/no/kernel"
def shell(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=5)
    return done.stdout.strip() if done.returncode == 0 else None
'''


def attempts(text: str, **values: object) -> str:
    """A cell that makes all attempts of a text; every function whose name ends in _ is one."""
    assignments = "".join(f"{name} = {value!r}\n" for name, value in values.items())
    every = '\nfor name in [name for name in dir() if name.endswith("_") and not name.startswith("_")]:'
    return f'{_TRY}{assignments}{text}{every}\n    attempt(globals().pop(name))\nprint(made, "attempts")'


READ = """
secret = terces[::-1]
def gradebook_(): return read(f"{course}/gradebook.db")
def solution_(): return read(f"{course}/solutions/{chapter}/{chapter}.ipynb")
def others_(): return read(f"{course}/submitted/everything_right/{chapter}/{chapter}.ipynb")
def own_original_(): return os.listdir(f"{course}/submitted")
def by_relative_path_(): return glob.glob("../../../*.db") + glob.glob("../../*/*/*.ipynb") + glob.glob("/*/*.db")
def by_link_():
    os.symlink(f"{course}/gradebook.db", "link")
    return read("link")
def folder_of_the_course_(): return os.listdir(course)
def config_(): return read(f"{course}/nbgrader_config.py")
def the_courses_source_(): return os.listdir(f"{root}/solutions")
def tests_(): return os.listdir(f"{root}/tests")
def history_(): return os.listdir(f"{root}/.git")
def home_(): return [name for name in os.listdir(home) if not name.startswith((".pyenv", ".venv", "."))]
def home_settings_(): return read(f"{home}/.bashrc") or read(f"{home}/.profile")
def shadow_(): return read("/etc/shadow")
def hosts_(): return read("/etc/hosts")
def machine_id_(): return read("/etc/machine-id")
def temporary_files_():
    own = [prefix, sys.base_prefix, package, shared()]
    found = glob.glob("/tmp/*") + glob.glob("/var/tmp/*")
    return [path for path in found if not any(part.startswith(path) for part in own)]
def other_sandboxes_():
    here = os.path.dirname(os.path.dirname(shared()))
    return [name for name in os.listdir(here) if name.startswith(("grading-", "template-")) and name not in shared()]
def run_(): return os.listdir("/run") + os.listdir("/var/run")
def log_(): return os.listdir("/var/log")
def own_environment_(): return [name for name in os.environ if secret in os.environ[name]]
def any_environment_():
    for path in glob.glob("/proc/*/environ") + glob.glob("/proc/*/task/*/environ"):
        try:
            if read(path, secret.encode()): return path
        except OSError: pass
def any_command_line_():
    others = set(glob.glob("/proc/[0-9]*/cmdline")) - {f"/proc/{os.getpid()}/cmdline"}
    return [line for line in map(read, others) if b"nbgrader" in line or b"helpers.grading" in line]
def the_grader_(): return os.path.exists(f"/proc/{grader}") and read(f"/proc/{grader}/cmdline", b"pytest")
def files_of_others_():
    seen = []
    for path in glob.glob("/proc/[0-9]*/fd/*") + glob.glob("/proc/[0-9]*/cwd") + glob.glob("/proc/[0-9]*/root"):
        try: target = os.readlink(path)
        except OSError: continue
        if course in target or "gradebook" in target: seen.append(target)
    return seen
def outside_by_a_root_():
    for path in glob.glob("/proc/[0-9]*/root"):
        if os.path.exists(f"{path}{course}/gradebook.db"): return path
def memory_of_others_():
    for path in glob.glob("/proc/[0-9]*/mem"):
        if path.split("/")[2] not in ("self", str(os.getpid())):
            with open(path, "rb") as memory, open(path.replace("/mem", "/maps")) as maps:
                for line in maps:
                    if "rw-p" in line and ("heap" in line or "stack" in line):
                        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
                        memory.seek(begin)
                        if secret.encode() in memory.read(end - begin): return path
def kernel_messages_(): return os.read(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK), 100)
def disks_(): return [p for p in glob.glob("/dev/[svn][dv]*") if read(p)]
"""

# These are never made outside of a sandbox: there, one that works would do harm.
WRITE = """
def write_everywhere_():
    worked = []
    places = ["/", "/usr", "/usr/local/bin", "/bin", "/etc", "/opt", "/var", "/dev", "/home", "/root", "/srv",
              "/proc/self", "/sys", package, f"{package}/checks", prefix, f"{prefix}/bin", site, course, home, outside]
    for place in places:
        try: worked.append(write(f"{place}/{mark}"))
        except OSError: pass
    return worked
def change_files_():
    opened = []  # and no more
    numpy = sys.modules["numpy"].__file__
    for path in (f"{package}/checks/judging.py", os.path.realpath(sys.executable), numpy, "/etc/passwd"):
        try: open(path, "r+b").close()
        except OSError: continue
        opened.append(path)
    return opened
def make_writable_again_():
    for place in ("/", "/usr", package, prefix):
        if libc.mount(None, place.encode(), None, ctypes.c_ulong(4096 | 32), None) == 0: return place
def unmount_():
    for place in ("/usr", "/tmp", "/home/learner", "/proc", "/dev", package):
        if libc.umount2(place.encode(), 2) == 0: return place
def mount_():
    return libc.mount(b"none", b"/tmp", b"tmpfs", ctypes.c_ulong(0), None) == 0
def own_namespace_(): return shell("unshare", "-U", "-r", "id", "-u") == "0"
def own_mounts_(): return shell("unshare", "-U", "-r", "-m", "mount", "-t", "tmpfs", "none", "/tmp") is not None
def own_processes_(): return shell("unshare", "-U", "-r", "-p", "-f", "id")
def chroot_(): return libc.chroot(b"/tmp") == 0
def become_root_():
    os.setuid(0)
    return True
def setuid_programs_():
    for command in (["su", "-c", "id"], ["sudo", "-n", "id"], ["mount", "-o", "remount,rw", "/"], ["newgrp", "root"]):
        if "uid=0" in (shell(*command) or ""): return command
def own_setuid_program_():
    with open("/usr/bin/id", "rb") as one, open("/tmp/id", "wb") as two: two.write(one.read())
    os.chmod("/tmp/id", 0o4755)
    said = shell("/tmp/id") or ""
    os.unlink("/tmp/id")
    return "euid=0" in said
def capabilities_():
    lines = open("/proc/self/status").read().splitlines()
    return [line for line in lines if line.startswith(("CapPrm", "CapEff", "CapBnd", "CapAmb")) and int(line[7:], 16)]
def make_a_device_():
    os.mknod("/tmp/disk", 0o60666, os.makedev(254, 0))
    return True
def settings_of_the_system_():
    # Opened and no more: to write there could break the machine.
    opened = []
    for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sysrq-trigger"):
        try: os.close(os.open(path, os.O_WRONLY))
        except OSError: continue
        opened.append(path)
    return opened
def limits_lifted_():
    import resource
    for which in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        soft, hard = resource.getrlimit(which)
        if hard == resource.RLIM_INFINITY: return which
        try: resource.setrlimit(which, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        except (OSError, ValueError): continue
        return which
def name_of_the_machine_():
    socket.sethostname("owned")
    return True
def internet_():
    with socket.create_connection(("192.0.2.1", 53), timeout=2): return True
def internet_by_udp_():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender: return sender.sendto(b"x", ("192.0.2.1", 53))
def names_(): return socket.getaddrinfo("example.org", 443)
def trace_others_():
    return [p for p in range(3, 4_000) if p != os.getpid() and libc.ptrace(16, p, None, None) == 0]
def nicer_():
    return os.nice(-5) < 0
"""

REACH = """
def tcp_():
    with socket.create_connection(("127.0.0.1", tcp), timeout=2): return True
def tcp_6_():
    with socket.create_connection(("::1", tcp), timeout=2): return True
def tcp_on_the_machine_():
    with socket.create_connection((address, tcp), timeout=2): return True
def udp_():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.settimeout(2)
        sender.sendto(b"x", ("127.0.0.1", udp))
        return sender.recv(10)
def raw_():
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    return True
def packets_():
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    return True
def interfaces_(): return [name for _, name in socket.if_nameindex() if name != "lo"]
def abstract_socket_():
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("\\0" + abstract)
        return True
def abstract_sockets_(): return [line for line in open("/proc/net/unix") if "@" in line]
def socket_file_():
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(socket_file)
        return True
def sockets_of_the_system_():
    for path in glob.glob("/run/**/*.sock*", recursive=True) + ["/run/dbus/system_bus_socket", "/var/run/docker.sock"]:
        with socket.socket(socket.AF_UNIX) as client:
            try: client.connect(path)
            except OSError: continue
            return path
def shared_memory_(): return os.listdir("/dev/shm")
def shared_memory_of_system_v_(): return open("/proc/sysvipc/shm").read().splitlines()[1:]
def signal_the_grader_():
    os.kill(grader, 0)
    return True
def signal_others_():
    alive = []
    for process in range(4, 4_000):
        try: os.kill(process, 0)
        except ProcessLookupError: continue
        except PermissionError: pass
        if not os.path.exists(f"/proc/{os.getpid()}/task/{process}"): alive.append(process)
    return alive
def stop_the_parent_():
    if os.getppid() > 1: os.kill(os.getppid(), 0)
    return os.getppid() > 1
"""


class Lures:
    """What waits outside for somebody to come out: a server, a datagram, sockets, a folder to write into."""

    def __init__(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="lures-"))
        self.outside, self.socket_file, self.abstract = str(folder), str(folder / "socket"), f"lure-{os.getpid()}"
        self._servers = [_listening(socket.AF_INET, ("0.0.0.0", 0)), _listening(socket.AF_UNIX, self.socket_file)]
        if sys.platform == "linux":
            self._servers.append(_listening(socket.AF_UNIX, f"\0{self.abstract}"))
        self._echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._echo.bind(("127.0.0.1", 0))
        self._echo.setblocking(False)
        self.tcp, self.udp = self._servers[0].getsockname()[1], self._echo.getsockname()[1]

    def came(self) -> int:
        """How many have come since the last time."""
        count = 0
        for server in self._servers:
            try:
                while True:
                    server.accept()[0].close()
                    count += 1
            except BlockingIOError:
                continue
        try:
            while self._echo.recv(10):
                count += 1
        except BlockingIOError:
            return count

    def values(self) -> dict[str, object]:
        names = ("outside", "socket_file", "abstract", "tcp", "udp")
        return {name: getattr(self, name) for name in names} | {"address": _address(), "grader": os.getpid()}


@functools.cache
def lures() -> Lures:
    """The same ones for all tests of this process."""
    return Lures()


def _listening(family: int, address: object) -> socket.socket:
    server = socket.socket(family)
    server.bind(address)
    server.listen(1_000)
    server.setblocking(False)
    return server


def _address() -> str:
    """This machine's own address, as others see it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"


def places(course: Path) -> dict[str, object]:
    """Where things are, for attempts that know this machine well."""
    return {
        "course": str(course),
        "chapter": CHAPTER,
        "root": str(ROOT),
        "package": str(ROOT / "helpers"),
        "prefix": sys.prefix,
        "site": str(Path(sys.modules["numpy"].__file__).parents[1]),
        "home": str(Path.home()),
        "terces": SECRET[::-1],  # backwards, so that it is found only where it got out
        "mark": MARK,
    }


def reading(course: Path) -> str:
    return attempts(READ, **places(course), **lures().values())


def writing(course: Path) -> str:
    return attempts(WRITE, **places(course), **lures().values())


def reaching(course: Path) -> str:
    return attempts(REACH, **places(course), **lures().values())


#: Leaves a process that would live on, with all ties cut, and one that every new kernel would meet.
LEAVING = f"""
import os, subprocess, sys, time
loop = "import time\\nwhile True: time.sleep(1)"
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 3)
        os.execv(sys.executable, ["{MARK}", "-c", loop])
    os._exit(0)
os.wait()
subprocess.Popen([sys.executable, "-c", loop, "{MARK}"], start_new_session=True)
for place in ("/tmp", "/dev/shm", os.path.expanduser("~"), "."):
    with open(f"{{place}}/{MARK}", "w") as file: file.write("x")
startup = os.path.expanduser("~/.ipython/profile_default/startup")
os.makedirs(startup, exist_ok=True)
with open(f"{{startup}}/{MARK}.py", "w") as file: file.write("print('{WORKED}')")
print("1 attempts")
"""

FINDING = f"""
def files_():
    places = ("/tmp", "/dev/shm", "/home/learner", ".")
    return [path for place in places for path in glob.glob(f"{{place}}/*{MARK}*")]
def startup_(): return glob.glob("/home/learner/.ipython/**/{MARK}*", recursive=True)
def processes_(): return [p for p in glob.glob("/proc/[0-9]*/cmdline") if read(p, b"{MARK}")]
def crowd_(): return len(glob.glob("/proc/[0-9]*")) > 4
"""


# What is handed in


@submission()
def everything_read(notebook, folder):
    add_cell(notebook, reading(folder.parents[2]))


@submission()
def everything_written(notebook, folder):
    add_cell(notebook, writing(folder.parents[2]))


@submission()
def everything_called(notebook, folder):
    add_cell(notebook, reaching(folder.parents[2]))


@submission()
def process_left_behind(notebook, folder):
    add_cell(notebook, LEAVING)


@submission()
def remains_of_others_looked_for(notebook, folder):
    add_cell(notebook, attempts(FINDING))


@submission()
def modules_of_its_own(notebook, folder):
    trap = f"print('{WORKED}')\nraise RuntimeError('a submitted module was imported')"
    names = (
        "numpy helpers sitecustomize usercustomize json random conftest ipython_config jupyter_config nbgrader_config"
    )
    for name in names.split():
        (folder / f"{name}.py").write_text(trap)
    for name in ("torch", "helpers/checks", "IPython", ".ipython/profile_default/startup", "__pycache__"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(trap)
    (folder / ".ipython" / "profile_default" / "startup" / "00.py").write_text(trap)
    (folder / ".ipython" / "profile_default" / "ipython_config.py").write_text(trap)
    (folder / "helpers" / "checks" / "__init__.py").write_text("def grade(exercise): return 4.0")
    (folder / "jupyter_config.json").write_text('{"ExecuteSubmission": {"sandbox": false}}')
    (folder / "pyvenv.cfg").write_text("home = /nowhere")
    (folder / "evil.pth").write_text(f"import os; print('{WORKED}')")
    add_cell(notebook, "print(1, 'attempts')")
