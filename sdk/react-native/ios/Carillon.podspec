# The Swift package Carillon as a pod, for the app and its notification service extension.
Pod::Spec.new do |s|
  s.name = "Carillon"
  s.version = "0.1.0"
  s.summary = "The device SDK of Carillon for iPhones."
  s.homepage = "https://carillon.invalid"
  s.license = "none"
  s.author = "Carillon"
  s.source = { :path => "." }
  s.platform = :ios, "13.0"
  s.swift_version = "5.7"
  s.source_files = "Carillon/**/*.swift"
  s.resource_bundles = { "Carillon_Privacy" => ["Carillon/PrivacyInfo.xcprivacy"] }
end
