"""Drawings of computation graphs: SVG, Graphviz's DOT, Mermaid. `pjax.draw` makes them.

- `diagram`: what is shown, boxes and arrows, in what colours. `names`: in what words.
- `text`: written for programs that find places themselves.
- `place`, `svg`: with places, as a picture.

Pictures need the extra ``draw``: ``pip install "pjax-learn[draw]"``.
"""
