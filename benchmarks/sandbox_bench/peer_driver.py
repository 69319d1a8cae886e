"""Runs programs with another project's own tool, in that project's own interpreter, and times them there.

    PYTHON peer_driver.py NAME

Needs nothing but the standard library and the project, because projects of this kind do not install beside each other.
Its first line of output is a JSON object that describes what is measured; each line of input is a JSON string, a
program, and is answered with ``[seconds, output]``. Tools that call plain ``python`` find the one of this interpreter's
environment first, if the caller's PATH says so.
"""

import importlib.metadata
import json
import os
import platform
import sys
import time


def gem_llm():
    """GEM's tool: a subprocess in a fresh folder, after a look at the program's text."""
    from gem.tools.python_code_tool import PythonCodeTool

    tool = PythonCodeTool()

    def run(program):
        return tool.execute_action(f"<python>{program}</python>")[2].removeprefix("Code execution result: ")

    return run, "gem.tools.python_code_tool.PythonCodeTool, sandbox_type='none'"


def skyrl_gym():
    """SkyRL's tool: a subprocess."""
    from skyrl_gym.tools.python import PythonCodeExecutorToolGroup

    return PythonCodeExecutorToolGroup().python, "skyrl_gym.tools.python.PythonCodeExecutorToolGroup"


def verifiers():
    """Verifiers' local runtime, which its harnesses and tool servers run programs with; there is no Python tool."""
    import asyncio

    from verifiers.v1.runtimes import make_runtime
    from verifiers.v1.runtimes.subprocess import SubprocessConfig

    loop = asyncio.new_event_loop()
    runtime = make_runtime(SubprocessConfig())
    loop.run_until_complete(runtime.start())

    def run(program):
        return loop.run_until_complete(runtime.run_program(["python", "-c", program], {})).stdout

    return run, "verifiers.v1.runtimes.subprocess.SubprocessRuntime"


TOOLS = {"gem-llm": gem_llm, "skyrl-gym": skyrl_gym, "verifiers": verifiers}


def main():
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a tool prints is not an answer
    name = sys.argv[1]
    run, what = TOOLS[name]()
    about = {"version": importlib.metadata.version(name), "python": platform.python_version(), "what": what}
    answers.write(json.dumps(about) + "\n")
    for line in sys.stdin:
        program = json.loads(line)
        start = time.perf_counter()
        output = run(program)
        answers.write(json.dumps([time.perf_counter() - start, output]) + "\n")


if __name__ == "__main__":
    main()
