"""Job files: read, checked, defaulted, refused in words, and written again (docs/jobspec.md)."""

from primusd.jobfile.checking import ParseContext as ParseContext
from primusd.jobfile.conversion import Conversion as Conversion
from primusd.jobfile.conversion import convert_file as convert_file
from primusd.jobfile.parsing import Parsed as Parsed
from primusd.jobfile.parsing import parse as parse
from primusd.jobfile.parsing import parse_document as parse_document
from primusd.jobfile.patching import apply_patch as apply_patch
from primusd.jobfile.patching import diff as diff
from primusd.jobfile.patching import split_sizes as split_sizes
from primusd.jobfile.planning import plan as plan
from primusd.jobfile.reading import read_document as read_document
from primusd.jobfile.rendering import render as render
from primusd.jobfile.rendering import to_yaml as to_yaml
from primusd.jobfile.yamlwriting import write_yaml as write_yaml
