"""The chat template of models that bring none, as base models do.

    System: Be brief.

    User: Name a colour.

    Assistant:

Such a model does not know where to end, so its reply is cut where it begins another turn.
"""

from __future__ import annotations

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] | capitalize }}: {{ message['content'] }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
STOP = ("\n\nUser:", "\n\nAssistant:")
