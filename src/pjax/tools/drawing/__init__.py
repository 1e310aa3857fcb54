"""Drawings of computation graphs: SVG, Graphviz's DOT, Mermaid. `pjax.draw` makes them.

- `diagram`: what is shown, boxes and arrows. `names`, `style`: in what words and colours.
- `dot`, `mermaid`: written as text, for programs that find places themselves.
- `place`, `svg`: with places, as a picture.

Pictures need the extra ``draw``: ``pip install "pjax-learn[draw]"``.
"""
