"""Submissions that end their kernel, do not end themselves, or take all that there is."""

from __future__ import annotations

from submissions import submission
from submissions.chapter import (
    ALL,
    NONE,
    PERHAPS_SOFTMAX,
    QUIZ,
    SOFTMAX,
    WITHOUT_SOFTMAX,
    add_cell,
    answer_softmax,
    begin_softmax_with,
    set_source,
)

STOPPED = "this cell stopped the notebook, which was run again without it"
CROWDED = f"{STOPPED} (it started more than 40 processes"
GREEDY = f"{STOPPED} (it used more than 1500 MB of memory)"


def follow_softmax_by(notebook, statements):
    """A right answer, and something else in its cell."""
    answer_softmax(notebook, f"{SOFTMAX}\n{statements}")


# Ends


@submission(WITHOUT_SOFTMAX, f"`softmax`: {STOPPED}", "not_defined")
def kernel_killed(notebook, folder):
    follow_softmax_by(notebook, "import os\nos._exit(1)")


@submission(WITHOUT_SOFTMAX, "`softmax`: this cell told the notebook to exit")
def kernel_asked_to_exit(notebook, folder):
    follow_softmax_by(notebook, "exit()")


@submission(ALL, "the cell that begins 'import os, signal", STOPPED)
def kernel_killed_by_the_last_cell(notebook, folder):
    add_cell(notebook, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", len(notebook.cells))


@submission(NONE, "the submission had stopped its kernel 4 times")
def kernel_killed_by_every_cell(notebook, folder):
    for place in range(6):
        add_cell(notebook, f"import os; os._exit({place})")


@submission(ALL, STOPPED)
def everything_in_sight_killed(notebook, folder):
    add_cell(notebook, "import os\nos.kill(-1, 9)", len(notebook.cells))
    kill_all = """
import os, time
for signal in (19, 9):
    for process in [int(name) for name in os.listdir("/proc") if name.isdigit()] + [os.getppid() or 1, 1]:
        if process != os.getpid():
            try: os.kill(process, signal)
            except OSError: pass
time.sleep(1)"""
    add_cell(notebook, kill_all)


@submission(WITHOUT_SOFTMAX, "crashed")
def process_ended_by_the_function(notebook, folder):
    begin_softmax_with(notebook, "import os; os._exit(0)")


@submission(WITHOUT_SOFTMAX, "exits")
def system_exit(notebook, folder):
    begin_softmax_with(notebook, "raise SystemExit")
    set_source(notebook, "quiz_01_1", f"{QUIZ}\nimport sys\nsys.exit()")


@submission()
def connection_taken_away(notebook, folder):
    delete = """
import glob, os
from ipykernel import get_connection_file
for path in glob.glob(os.path.dirname(get_connection_file()) + "/*"):
    os.unlink(path)
    os.symlink("/run/dbus/system_bus_socket", path)
import shutil
shutil.rmtree(os.getcwd(), ignore_errors=True)"""
    add_cell(notebook, delete)


@submission()
def own_folder_deleted(notebook, folder):
    follow_softmax_by(notebook, "import os, shutil\nshutil.rmtree(os.getcwd())")


# Time


@submission(ALL, "`softmax`: was stopped after ")
def endless_loop_at_the_top_level(notebook, folder):
    follow_softmax_by(notebook, "while True: pass")


@submission(WITHOUT_SOFTMAX, "endless_loop")
def endless_loop_in_the_function(notebook, folder):
    begin_softmax_with(notebook, "while True: pass")


@submission(WITHOUT_SOFTMAX, f"`softmax`: {STOPPED} (CellTimeoutError)", takes_long=True)
def endless_loop_that_swallows_interrupts(notebook, folder):
    loop = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
while True:
    try:
        while True: pass
    except BaseException: pass"""
    follow_softmax_by(notebook, loop)


@submission(WITHOUT_SOFTMAX, f"`softmax`: {STOPPED} (CellTimeoutError)", takes_long=True)
def endless_sum_in_c(notebook, folder):
    follow_softmax_by(notebook, "7 ** (10 ** 9)")


@submission(ALL, "`softmax`: was stopped after ", takes_long=True)
def sleeping_forever(notebook, folder):
    follow_softmax_by(notebook, "import time\ntime.sleep(1e9)")


@submission(WITHOUT_SOFTMAX, f"`softmax`: {STOPPED} (CellTimeoutError)", takes_long=True)
def stopped_by_its_own_signal(notebook, folder):
    follow_softmax_by(notebook, "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)")


@submission()
def input_at_the_top_level(notebook, folder):
    follow_softmax_by(notebook, "scale = float(input('scale? '))")


@submission(WITHOUT_SOFTMAX, "asked_for_input")
def input_in_the_function(notebook, folder):
    begin_softmax_with(notebook, "input('scale? ')")


# Processes


@submission(WITHOUT_SOFTMAX, f"`softmax`: {STOPPED} (it ")
def fork_bomb(notebook, folder):
    follow_softmax_by(notebook, "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass")


@submission(ALL, CROWDED)
def crowd_of_processes(notebook, folder):
    crowd = "import subprocess, time\nfor _ in range(200): subprocess.Popen(['sleep', '1000'])\ntime.sleep(5)"
    add_cell(notebook, crowd, len(notebook.cells))


@submission()
def thread_bomb(notebook, folder):
    bomb = """
import threading
try:
    for _ in range(100_000): threading.Thread(target=threading.Event().wait, daemon=True).start()
except RuntimeError as error: print(error)"""
    add_cell(notebook, bomb, len(notebook.cells))


# Memory


@submission()
def fifty_gigabytes_at_once(notebook, folder):
    follow_softmax_by(notebook, "kept = bytearray(50_000_000_000)")


@submission(WITHOUT_SOFTMAX, "out_of_memory")
def fifty_gigabytes_in_the_function(notebook, folder):
    begin_softmax_with(notebook, "kept = np.ones(6_000_000_000)")


@submission(WITHOUT_SOFTMAX, f"`softmax`: {GREEDY}")
def memory_taken_in_small_pieces(notebook, folder):
    follow_softmax_by(notebook, "kept = []\nwhile True: kept.append(bytearray(1_000_000))")


@submission(WITHOUT_SOFTMAX, f"`softmax`: {STOPPED} (it ")
def memory_shared_between_processes(notebook, folder):
    """What is shared does not belong to any one process, but is taken from everybody."""
    share = """
import mmap, time
kept = []
for _ in range(60):
    kept.append(mmap.mmap(-1, 50_000_000))
    kept[-1].write(b"x" * 50_000_000)
time.sleep(2)"""
    follow_softmax_by(notebook, share)


# Files and output


@submission()
def every_folder_filled(notebook, folder):
    fill = """
import os, tempfile
for place in (os.getcwd(), "/tmp", "/dev/shm", os.path.expanduser("~"), "/var/tmp", "/"):
    try:
        for number in range(100):
            with open(os.path.join(place, f"f{number}"), "wb") as file: file.write(bytes(40_000_000))
        print("filled", place)
    except OSError as error: print(error)
    for number in range(3):
        try: os.unlink(os.path.join(place, f"f{number}"))
        except OSError: pass"""
    add_cell(notebook, fill)


FILL_CONNECTION = """
import os, time
from ipykernel import get_connection_file
here = os.path.dirname(get_connection_file())
os.mkdir(f"{here}/deep")
kept = []
for number in range(30):
    kept.append(open(f"{here}/deep/{number}", "wb"))
    kept[-1].write(bytes(40_000_000))
    time.sleep(0.02)
time.sleep(2)"""


@submission(WITHOUT_SOFTMAX, f"`softmax`: {STOPPED} (it filled the folder of its connection)")
def connection_folder_filled(notebook, folder):
    follow_softmax_by(notebook, FILL_CONNECTION)


@submission(PERHAPS_SOFTMAX)
def gigabytes_printed(notebook, folder):
    follow_softmax_by(notebook, "for _ in range(3_000): print('x' * 1_000_000)")


@submission(PERHAPS_SOFTMAX, takes_long=True)
def gigabytes_written_to_the_descriptors(notebook, folder):
    write = "import os\nfor _ in range(1_000):\n    for out in (1, 2): os.write(out, bytes(1_000_000))"
    follow_softmax_by(notebook, write)


@submission(PERHAPS_SOFTMAX)
def gigabyte_displayed(notebook, folder):
    show = "for _ in range(100): display({'text/plain': 'x' * 10_000_000}, raw=True)"
    follow_softmax_by(notebook, show)


@submission(PERHAPS_SOFTMAX)
def one_huge_message(notebook, folder):
    follow_softmax_by(notebook, "display({'text/plain': 'x' * 60_000_000}, raw=True)")


@submission()
def thousands_of_outputs(notebook, folder):
    add_cell(notebook, "for _ in range(3_000): display({'text/plain': ''}, raw=True)")
