"""Rows in the form of ReTool-SFT, as tests need them."""

from __future__ import annotations

from typing import Any

QUESTION = "What is 6 times 7, plus 1 over 0?"

ASKED = (
    "Solve the following problem step by step. You now have the ability to write code.\n\n*user question:*\n"
    "Answer the following Math Problem and put the answer in the format of \\boxed{answer}\n\n"
    f"{QUESTION}\n\n\nRemember to place the final answer in the last part using the format: \n<answer>\n"
    "\\boxed{'The final answer goes here.'}\n</answer>"
)

SAID = (
    "First I multiply.\n\n<code>\n```python\nprint(6 * 7)\n```\n</code>\n<interpreter>\n42\n</interpreter>\n\n"
    "Then I divide.\n<code>\nprint(1 / 0)\n</code>\n<interpreter>\nZeroDivisionError: division by zero\n"
    "</interpreter>\n\nThat has no value.\n\n<answer>\n\\boxed{42}\n</answer>"
)


def row(said: str = SAID, asked: str = ASKED) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]}
