require "json"

package = JSON.parse(File.read(File.join(__dir__, "package.json")))

Pod::Spec.new do |s|
  s.name = "carillon-react-native"
  s.module_name = "CarillonReactNative"
  s.version = package["version"]
  s.summary = package["description"]
  s.homepage = "https://carillon.invalid"
  s.license = "none"
  s.author = "Carillon"
  s.source = { :path => "." }
  s.platform = :ios, "13.4"
  s.swift_version = "5.7"
  s.source_files = "ios/*.{h,mm,swift}"
  s.dependency "Carillon", package["version"]
  install_modules_dependencies(s)
end
