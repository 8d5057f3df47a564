"use strict";

/** Jest's transformer for the programs of the page. */

const typescript = require("typescript");

const compilerOptions = { module: typescript.ModuleKind.CommonJS, target: typescript.ScriptTarget.ES2022 };

module.exports = { process: (text) => ({ code: typescript.transpileModule(text, { compilerOptions }).outputText }) };
