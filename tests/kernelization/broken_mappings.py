"""Mapping files with one mistake each: what the loader says of it, and whether the JSON Schema sees it too.

The schema cannot know contracts, versions, capabilities' order or other files; those rows say so.
"""

from __future__ import annotations

from typing import NamedTuple

MAP = '[[map]]\nlayer = "L"\ndevice = "cpu"\nrepository = "bundled:b"\n'
TAG = '[[tag]]\nlayer = "L"\nclasses = ["m:C"]\n'
CONTRACT = "[contract.c]\nsource = 'def f(x): return x'\n"


class Broken(NamedTuple):
    text: str
    """Without its first line, `schema = 1`."""
    place: str
    """ "line N: key", as the message begins after the file's name."""
    message: str
    in_schema: bool = True


BROKEN = {
    "unknown key at the top": Broken("maps = 1\n", "line 2: maps", "unknown key 'maps'; did you mean 'map'?"),
    "unknown key in a map": Broken(
        MAP + 'layer_nmae = "x"\n',
        "line 6: map[0].layer_nmae",
        "unknown key 'layer_nmae'; did you mean 'layer_name'?",
    ),
    "unknown key, nothing near": Broken(
        TAG + "zzz = 1\n", "line 5: tag[0].zzz", "unknown key 'zzz'; known: layer, classes"
    ),
    "unknown key in a device": Broken(
        MAP.replace('"cpu"', '{ type = "cuda", min_capabilty = 80 }'),
        "line 4: map[0].device.min_capabilty",
        "did you mean 'min_capability'?",
    ),
    "unknown key in a contract": Broken(
        CONTRACT + "name = 1\n", "line 4: contract.c.name", "did you mean 'names'?"
    ),
    "compiled, with a version": Broken(
        MAP.replace("bundled:b", "compiled") + "version = 1\n", "line 6: map[0].version", "has no version"
    ),
    "compiled, dynamic of the wrong type": Broken(
        MAP.replace("bundled:b", "compiled") + 'dynamic = "x"\n',
        "line 6: map[0].dynamic",
        "expected true, false",
    ),
    "compiled, a dim without a name": Broken(
        MAP.replace("bundled:b", "compiled") + "dynamic = { x = { 0 = 3 } }\n",
        "line 6: map[0].dynamic",
        "expected the name of a dim, such as 'batch', got 3",
        in_schema=False,
    ),
    "compiled, a range of nothing": Broken(
        MAP.replace("bundled:b", "compiled") + "ranges = { batch = [1, 8] }\n",
        "line 6: map[0].ranges",
        "ranges are given for 'batch'; dynamic names no dims",
        in_schema=False,
    ),
    "dynamic, not compiled": Broken(
        MAP + "dynamic = true\n", "line 6: map[0].dynamic", 'is for repository = "compiled" alone'
    ),
    "include of the wrong type": Broken(
        'include = "default"\n', "line 2: include", "expected a list of shipped names or paths, got 'default'"
    ),
    "include of nothing": Broken("include = []\n", "line 2: include", "got an empty list"),
    "include with a number": Broken("include = [1]\n", "line 2: include[0]", "got 1 in it"),
    "map that is no array of tables": Broken(
        "[map]\nlayer = 'L'\n", "line 2: map", "expected tables, each begun by [[map]], got {"
    ),
    "map of numbers": Broken("map = [1]\n", "line 2: map[0]", "expected a table, begun by [[map]], got 1"),
    "contract that is no table": Broken(
        "contract = [1]\n", "line 2: contract", "each begun by [contract.<name>]"
    ),
    "contract without a table": Broken(
        "contract.c = 'def f(): pass'\n", "line 2: contract.c", "expected a table, begun by [contract.c]"
    ),
    "no level": Broken(
        '[[tag]]\nlayer = "L"\nlevels = 0\n',
        "line 4: tag[0].levels",
        "expected 1 (the model itself) or more, got 0",
    ),
    "levels of classes": Broken(
        TAG + "levels = 2\n", "line 5: tag[0].levels", "leave classes, functions and forward out"
    ),
    "written functions": Broken(
        '[[tag]]\nlayer = "L"\nfunctions = ["m:f"]\nwritten = true\n',
        "line 5: tag[0].written",
        "it is asked of classes",
        in_schema=False,
    ),
    "no layer": Broken(
        MAP.replace('layer = "L"\n', ""),
        "line 2: map[0]",
        "expected 'layer' (one name) or 'layers' (a list), got neither",
    ),
    "layer and layers": Broken(MAP + 'layers = ["M"]\n', "line 2: map[0]", "got both"),
    "layer of the wrong type": Broken(
        MAP.replace('"L"', "1"), "line 3: map[0].layer", "expected a layer name, got 1"
    ),
    "empty layer": Broken(MAP.replace('"L"', '""'), "line 3: map[0].layer", "expected a layer name, got ''"),
    "empty layers": Broken(
        MAP.replace('layer = "L"', "layers = []"), "line 3: map[0].layers", "got an empty list"
    ),
    "no device": Broken(MAP.replace('device = "cpu"\n', ""), "line 2: map[0]", "the key 'device' is missing"),
    "unknown device": Broken(
        MAP.replace("cpu", "gpu"), "line 4: map[0].device", "unknown device type 'gpu'; known: cpu, cuda"
    ),
    "device of the wrong type": Broken(MAP.replace('"cpu"', "80"), "line 4: map[0].device", "got 80"),
    "no devices": Broken(MAP.replace('"cpu"', "[]"), "line 4: map[0].device", "got []"),
    "second device unknown": Broken(
        MAP.replace('"cpu"', '["cpu", "gpu"]'), "line 4: map[0].device[1]", "unknown device type 'gpu'"
    ),
    "device without a type": Broken(
        MAP.replace('"cpu"', "{ min_capability = 80 }"), "line 4: map[0].device", "the key 'type' is missing"
    ),
    "capability of cpu": Broken(
        MAP.replace('"cpu"', '{ type = "cpu", min_capability = 80 }'),
        "line 4: map[0].device",
        "device 'cpu' has no capabilities; cuda and rocm do",
    ),
    "capability as a float": Broken(
        MAP.replace('"cpu"', '{ type = "cuda", min_capability = 8.5 }'),
        "line 4: map[0].device.min_capability",
        "expected a capability such as 80 for 8.0, got 8.5",
    ),
    "capabilities the wrong way round": Broken(
        MAP.replace('"cpu"', '{ type = "cuda", min_capability = 90, max_capability = 80 }'),
        "line 4: map[0].device",
        "min_capability 90 is above max_capability 80",
        in_schema=False,
    ),
    "unknown mode": Broken(
        MAP + 'modes = ["inferrence"]\n',
        "line 6: map[0].modes[0]",
        "unknown mode 'inferrence'; did you mean 'inference'?",
    ),
    "mode that cannot exist": Broken(
        MAP + 'modes = ["inference|training"]\n', "line 6: map[0].modes[0]", "unknown mode"
    ),
    "modes that are no list": Broken(
        MAP + 'modes = "inference"\n', "line 6: map[0].modes", "expected a list of modes"
    ),
    "no modes": Broken(MAP + "modes = []\n", "line 6: map[0].modes", "got an empty list"),
    "mapped twice": Broken(
        MAP + MAP,
        "line 6: map[1]",
        "'L' is already mapped for cpu, mode fallback, in this file",
        in_schema=False,
    ),
    "no repository": Broken(
        MAP.replace('repository = "bundled:b"\n', ""), "line 2: map[0]", "the key 'repository' is missing"
    ),
    "repository of no form": Broken(
        MAP.replace("bundled:b", "normalization"), "line 5: map[0].repository", "got 'normalization'"
    ),
    "repository of unknown form": Broken(
        MAP.replace("bundled:b", "locale:b"), "line 5: map[0].repository", "got 'locale:b'"
    ),
    "repository without a name": Broken(
        MAP.replace("bundled:b", "bundled:"), "line 5: map[0].repository", "got 'bundled:'"
    ),
    "version of a bundled repository": Broken(
        MAP + "version = 1\n", "line 6: map[0].version", "a bundled repository has no version; remove the key"
    ),
    "revision of a local repository": Broken(
        MAP.replace("bundled:b", "local:b") + 'revision = "main"\n',
        "line 6: map[0].revision",
        "a local repository has no revision",
    ),
    "version and revision": Broken(
        MAP.replace("bundled:b", "o/n") + 'version = 1\nrevision = "main"\n', "line 2: map[0]", "not both"
    ),
    "version that is no specifier": Broken(
        MAP.replace("bundled:b", "o/n") + 'version = "one"\n',
        "line 2: map[0]",
        "'one' is not a specifier",
        in_schema=False,
    ),
    "version of the wrong type": Broken(
        MAP.replace("bundled:b", "o/n") + "version = 1.5\n", "line 6: map[0].version", "got 1.5"
    ),
    "layer_name for several layers": Broken(
        MAP.replace('layer = "L"', 'layers = ["L", "M"]') + 'layer_name = "N"\n',
        "line 6: map[0].layer_name",
        "can be given for one layer",
        in_schema=False,
    ),
    "covers that is no list": Broken(
        MAP + 'covers = "fc1"\n', "line 6: map[0].covers", "expected a list of attribute names, got 'fc1'"
    ),
    "where that is no table": Broken(
        MAP + "where = 1\n", "line 6: map[0].where", "expected a table of conditions, got 1"
    ),
    "where with a bad comparison": Broken(
        MAP + 'where = { in_features = ">=" }\n',
        "line 6: map[0].where.in_features",
        "expected a comparison such as '>=64'",
    ),
    "where with a bad path": Broken(
        MAP + '[map.where]\n"a b" = 1\n', "line 6: map[0].where.a b", "expected a path such as"
    ),
    "where with a date": Broken(
        MAP + "where = { x = 2020-01-01 }\n", "line 6: map[0].where.x", "expected a value, a comparison"
    ),
    "alternatives that are no list": Broken(
        "[alternatives]\ncheap = 1\n", "line 3: alternatives.cheap", "expected a list of alternatives, got 1"
    ),
    "alternatives of nothing": Broken(
        "[alternatives]\ncheap = []\n", "line 3: alternatives.cheap", "at least one alternative"
    ),
    "unknown alternatives": Broken(
        MAP + 'where = { act = { one_of = "chaep" } }\n[alternatives]\ncheap = [1]\n',
        "line 6: map[0].where.act",
        "expected the name of a list in [alternatives] (cheap), got 'chaep'",
        in_schema=False,
    ),
    "unknown contract in a condition": Broken(
        MAP + 'where = { act = { fulfils = "chaep" } }\n[contract.cheap]\nsource = "def f(x): return x"\n',
        "line 6: map[0].where.act",
        "expected the name of a contract, or a list of them, got 'chaep'",
        in_schema=False,
    ),
    "tag without a layer": Broken(
        TAG.replace('layer = "L"\n', ""), "line 2: tag[0]", "the key 'layer' is missing"
    ),
    "tag of nothing": Broken(
        TAG.replace('classes = ["m:C"]\n', ""),
        "line 2: tag[0]",
        "expected 'classes', 'functions' or 'levels', got none of them",
    ),
    "pattern without a module": Broken(
        TAG.replace("m:C", "C"), "line 4: tag[0].classes[0]", "expected 'module:name'"
    ),
    "pattern with two colons": Broken(
        TAG.replace("m:C", "m:C:D"), "line 4: tag[0].classes[0]", "got 'm:C:D'"
    ),
    "tag of an unknown contract": Broken(
        TAG + 'forward = ["d"]\n' + CONTRACT,
        "line 5: tag[0].forward[0]",
        "unknown contract 'd'; known: c",
        in_schema=False,
    ),
    "positional without a contract": Broken(
        TAG + "positional = true\n",
        "line 5: tag[0].positional",
        "only a contract proves that arguments correspond",
    ),
    "conditions on functions": Broken(
        TAG.replace("classes", "functions") + "where = { a = 1 }\n",
        "line 5: tag[0].where",
        "functions have none",
    ),
    "contract without a source": Broken(
        "[contract.c]\n", "line 2: contract.c", "the key 'source' is missing"
    ),
    "contract that does not parse": Broken(
        "[contract.c]\nsource = 'def f(:'\n",
        "line 3: contract.c.source",
        "got a syntax error in line 1 of it",
        in_schema=False,
    ),
    "contract that is no function": Broken(
        "[contract.c]\nsource = 'x = 1'\n",
        "line 3: contract.c.source",
        "not one function definition",
        in_schema=False,
    ),
    "contract with an unknown name": Broken(
        "[contract.c]\nsource = 'def f(x): return helper(x)'\n",
        "line 2: contract.c.names",
        "the source uses 'helper': say what it is",
        in_schema=False,
    ),
    "contract that explains too much": Broken(
        CONTRACT + "names = { helper = 'm:helper' }\n",
        "line 4: contract.c.names.helper",
        "the source does not use 'helper'",
        in_schema=False,
    ),
    "property that the source does not use": Broken(
        CONTRACT + "properties = ['loss']\n",
        "line 4: contract.c.properties.loss",
        "the source does not use 'loss'",
        in_schema=False,
    ),
    "decorator that is no name": Broken(
        CONTRACT + "decorators = ['@cached']\n",
        "line 4: contract.c.decorators[0]",
        "expected a function such as \"package.module:name\", got '@cached'",
    ),
    "variant that is no table": Broken(
        CONTRACT + "variants = ['x']\n",
        "line 4: contract.c.variants[0]",
        'expected a list of tables such as { "written here" = "written in another release" }, got \'x\'',
    ),
    "variant of what the source does not hold": Broken(
        CONTRACT + "variants = [{ 'no such text' = 'x' }]\n",
        "line 4: contract.c.variants[0]",
        "the source does not hold 'no such text'",
        in_schema=False,
    ),
    "variant that is no source": Broken(
        CONTRACT + "variants = [{ 'def' = 'fed' }]\n",
        "line 4: contract.c.variants[0]",
        "got a syntax error",
        in_schema=False,
    ),
    "contract with a method that it does not call": Broken(
        CONTRACT + "methods = { m = 'd' }\n[contract.d]\nsource = 'def m(): pass'\n",
        "line 4: contract.c.methods.m",
        "the source does not use 'm'",
        in_schema=False,
    ),
    "contract with a name of no object": Broken(
        CONTRACT + "names = { f = 'a b' }\n", "line 4: contract.c.names.f", "expected an object such as"
    ),
    "contract with an unknown contract": Broken(
        CONTRACT + "names = { f = { contract = 'cc' } }\n",
        "line 4: contract.c.names.f",
        "unknown contract 'cc'; did you mean 'c'?",
        in_schema=False,
    ),
    "contract with a contract of the wrong type": Broken(
        CONTRACT + "names = { f = { contract = 1 } }\n",
        "line 4: contract.c.names.f",
        "expected the name of a contract",
    ),
    "contracts that refer to each other": Broken(
        "[contract.c]\nsource = 'def f(): d()'\nnames = { d = { contract = 'd' } }\n"
        "[contract.d]\nsource = 'def d(): f()'\nnames = { f = { contract = 'c' } }\n",
        "line 2: contract.c",
        "contracts may not refer to themselves: c -> d -> c",
        in_schema=False,
    ),
}
