"""How Sphinx makes the site; `make site` writes the pages and calls it."""

from pathlib import Path

from autograder.handout.start import repository

project = html_title = "Sequence models, built by hand"
author = "the maintainers"
copyright = "the maintainers; texts CC BY 4.0, code MIT"
language = "en-GB"
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "autograder.classroom.site.extension",
]
exclude_patterns = ["site"]
suppress_warnings = ["ref.python"]  # `bytes` in a signature is Python's and nothing else

# Pages: nothing is run, and formulas need neither a script nor the network.
nb_execution_mode = "off"
nb_merge_streams = True
nb_code_prompt_show = "Show the code"
nb_code_prompt_hide = "Hide the code"
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
myst_dmath_double_inline = True
myst_heading_anchors = 4
html_math_renderer = "mathml"

# The API: what docstrings say, in the order of the code, and no code.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True}
maximum_signature_line_length = 70
python_use_unqualified_type_names = True
add_module_names = False
napoleon_use_ivar = True
napoleon_use_rtype = False

html_theme = "sphinx_book_theme"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["copy.js"]
html_favicon = "_static/favicon.svg"
html_search_scorer = str(Path(__file__).with_name("scorer.js"))
html_copy_source = False
html_use_index = html_domain_indices = False
templates_path = ["_templates"]
html_sidebars = {"**": ["home.html", "search-button-field.html", "sbt-sidebar-nav.html"]}
html_show_sourcelink = False
html_theme_options = {
    "use_download_button": False,
    "footer_content_items": "copyright.html",
    "use_fullscreen_button": False,
    "max_navbar_depth": 1,
    "show_toc_level": 2,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
if public := repository():
    address = f"https://github.com/{public}"
    html_baseurl = "https://{}.github.io/{}/".format(*public.split("/"))
    html_theme_options |= {"repository_url": address, "use_repository_button": True}
