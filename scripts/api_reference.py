"""Pages api_cpp.md, api_c.md and api_python.md of the documentation site, made from what the code says about itself. A hook of
MkDocs; api_headers.py and api_package.py write the pages.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from api_headers import c_page, cpp_page  # noqa: E402
from api_package import python_page  # noqa: E402


def on_files(files, config):
    """MkDocs asks for further files here."""
    from mkdocs.structure.files import File

    for name, make in (("api_cpp.md", cpp_page), ("api_c.md", c_page), ("api_python.md", python_page)):
        files.append(File.generated(config, name, content=make()))
    return files
