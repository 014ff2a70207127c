r"""The chat prompt of Qwen2.5-VL as a Jinja template.

Published behaviour, measured on the released models: turns are `<|im_start|>ROLE`, a newline, the
content, `<|im_end|>` and a newline; a default system turn comes first when the conversation has
none; an image is `<|vision_start|><|image_pad|><|vision_end|>` at its place in the content (a video
has `<|video_pad|>`), numbered "Picture 1: " only when `add_vision_id` is set; and
`add_generation_prompt` opens the assistant's turn. A folder brings its own template and that one is
used; this one is for folders that we make ourselves.
"""

QWEN2_5_VL_TEMPLATE = (
    "{%- set seen = namespace(images=0, videos=0) -%}"
    "{%- if not messages or messages[0].role != 'system' -%}"
    "{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' -}}"
    "{%- endif -%}"
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\\n' -}}"
    "{%- if message.content is string -%}"
    "{{- message.content -}}"
    "{%- else -%}"
    "{%- for part in message.content -%}"
    "{%- if part.type == 'image' or 'image' in part or 'image_url' in part -%}"
    "{%- set seen.images = seen.images + 1 -%}"
    "{%- if add_vision_id -%}{{- 'Picture ' ~ seen.images ~ ': ' -}}{%- endif -%}"
    "{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}"
    "{%- elif part.type == 'video' or 'video' in part -%}"
    "{%- set seen.videos = seen.videos + 1 -%}"
    "{%- if add_vision_id -%}{{- 'Video ' ~ seen.videos ~ ': ' -}}{%- endif -%}"
    "{{- '<|vision_start|><|video_pad|><|vision_end|>' -}}"
    "{%- elif 'text' in part -%}"
    "{{- part.text -}}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- endif -%}"
    "{{- '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
