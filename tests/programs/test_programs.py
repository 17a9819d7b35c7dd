"""A program that the server runs is what it would be in a process of its own."""

import os
import select
import signal
import socket
import subprocess
import time

import pytest

from tests.programs import ADDRESS, python

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="machine: no pidfd"),
]


def run(*words, **more):
    return subprocess.run([*python(), *words], capture_output=True, text=True, **more)


def test_arguments_input_folder_and_end_are_passed_on(tmp_path):
    code = "import os, sys; print(sys.argv[1:], input(), os.getcwd()); sys.exit(3)"
    done = run("-c", code, "a", "b c", input="in\n", cwd=tmp_path)
    assert done.stdout == f"['a', 'b c'] in {tmp_path}\n" and done.returncode == 3
    assert run("-c", "import os; os.kill(os.getpid(), 9)").returncode == -9


def test_an_error_ends_a_program_and_is_told():
    done = run("-c", "import numpy; numpy.undefined")
    assert done.returncode == 1 and "AttributeError" in done.stderr


def test_a_warning_is_an_error_where_that_is_asked_for():
    code = "import warnings; warnings.warn('x', UserWarning); print('on')"
    assert run("-c", code).stdout == "on\n"
    done = run("-W", "error", "-c", code)
    assert done.returncode == 1 and "UserWarning" in done.stderr


def test_what_was_read_at_import_cannot_be_changed():
    done = run("-c", "pass", env=os.environ | {"JAX_ENABLE_X64": "1"})
    assert done.returncode == 1 and "JAX_ENABLE_X64" in done.stderr


def test_one_program_does_not_see_the_other():
    assert run("-c", "import os, json; os.environ['X'] = json.x = '1'").returncode == 0
    done = run("-c", "import os, json; print(os.environ.get('X'), hasattr(json, 'x'))")
    assert done.stdout == "None False\n"


def test_a_program_ends_with_its_client_and_a_signal_reaches_it(tmp_path):
    here = tmp_path / "here"
    code = (
        "import os, sys, time; from pathlib import Path\n"
        "Path(sys.argv[1] + '.new').write_text(str(os.getpid()))\n"
        "os.rename(sys.argv[1] + '.new', sys.argv[1]); time.sleep(60)"
    )
    for number, told in ((signal.SIGKILL, None), (signal.SIGINT, "KeyboardInterrupt")):
        client = subprocess.Popen(
            [*python(), "-c", code, here], stderr=subprocess.PIPE, text=True
        )
        while not here.exists():
            time.sleep(0.01)
        program = os.pidfd_open(int(here.read_text()))
        client.send_signal(number)
        assert select.select([program], [], [], 60)[0], "it lives on"
        said = client.communicate()[1]
        assert told is None or told in said
        assert client.returncode == -number
        here.unlink()
        os.close(program)


def test_a_client_that_is_gone_stops_nobody():
    run("-c", "pass")  # the server is there
    for part in (b"", (100).to_bytes(8, "big"), (4).to_bytes(8, "big") + b"{}"):
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(os.environ[ADDRESS])
            link.sendall(part)
    assert run("-c", "print('on')").stdout == "on\n"


def test_output_is_passed_on_at_once_where_that_is_asked_for():
    code = "import os; print('said'); os._exit(0)"
    assert run("-u", "-c", code).stdout == "said\n"
