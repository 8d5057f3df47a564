// Runs React Native's codegen on the specification of a package, as an app's build does:
// node generate_react_native.js CODEGEN PACKAGE FOLDER

const { mkdirSync, readFileSync } = require("node:fs");
const { join } = require("node:path");

const [codegen, source, folder] = process.argv.slice(2);
const { TypeScriptParser } = require(join(codegen, "lib/parsers/typescript/parser"));
const { generate } = require(join(codegen, "lib/generators/RNCodegen"));

const { name, jsSrcsDir, android } = JSON.parse(readFileSync(join(source, "package.json"), "utf8")).codegenConfig;
const schema = new TypeScriptParser().parseFile(join(source, jsSrcsDir, "NativeCarillon.ts"));
for (const [platform, generator] of Object.entries({ android: "modulesAndroid", ios: "modulesIOS" })) {
  const outputDirectory = join(folder, platform);
  mkdirSync(outputDirectory, { recursive: true });
  const options = { libraryName: name, schema, outputDirectory, packageName: android.javaPackageName };
  generate({ ...options, assumeNonnull: true }, { generators: [generator] });
}
