"""The formgrader's addresses that are refused: those by which a link could act as the grader."""

import pytest
from tornado.httputil import HTTPHeaders, HTTPServerRequest, RequestStartLine

from autograder.classroom.formgrader import Refused

PAGES = """
/formgrader /formgrader/ /formgrader/manage_assignments /formgrader/manage_submissions/02_lstm
/formgrader/gradebook/02_lstm/02_lstm /formgrader/gradebook/02_lstm/two%20words
/formgrader/manage_students/ada.l+1@b.org/02_lstm /formgrader/manage_students/zo%C3%AB
/formgrader/submissions/f8636933 /formgrader/submissions/f8636933/?index=2
/formgrader/submissions/f8636933/next /formgrader/submissions/f8636933/prev_incorrect?index=1
/formgrader/static/node_modules/jquery/dist/jquery.min.js /formgrader/api/grade/1
/formgrader/api/grades?submission_id=f8636933 /lab?path=/x /files/a%22b /api/contents/a'b
""".split()
ATTACKS = """
/formgrader?path=/tmp /formgrader/?path=/tmp /formgrader?a&path=/tmp /formgrader?%70ath=/tmp
/formgrader/manage_assignments?path=/tmp /%66ormgrader?path=/tmp
/formgrader/submissions/f8636933/plot.html /formgrader/submissions/f8636933/figures/plot.svg
/formgrader/submissions/f8636933/next/plot.html /formgrader/submissions/f8636933/%70lot.html
/formgrader/submissions/f8636933%2Fplot.html
/formgrader/manage_students/%22;x()%2F%2F /formgrader/manage_students/%5C/;x()
/formgrader/manage_students/<img%20src=x%20onerror=x()> /formgrader/manage_students/%3Cimg%3E
/formgrader/gradebook/%27;x() /formgrader/gradebook/%60x%60/$%7Bx()%7D
/formgrader/manage_submissions/a%00b /formgrader/gradebook/a%0Ab
""".split()


BASES = ["/", "/services/sequence_models/", "/user/a%40b/"]


def is_refused(base_url: str, address: str) -> bool:
    line = RequestStartLine("GET", base_url + address[1:], "HTTP/1.1")
    request = HTTPServerRequest(start_line=line, headers=HTTPHeaders({"Host": "localhost"}))
    return Refused(base_url).match(request) is not None


@pytest.mark.parametrize("base_url", BASES)
@pytest.mark.parametrize("address", PAGES)
def test_pages_open(address, base_url):
    assert not is_refused(base_url, address)


@pytest.mark.parametrize("base_url", BASES)
@pytest.mark.parametrize("address", ATTACKS)
def test_what_acts_is_refused(address, base_url):
    assert is_refused(base_url, address)
