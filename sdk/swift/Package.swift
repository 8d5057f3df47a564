// swift-tools-version:5.7
import PackageDescription

let package = Package(
    name: "Carillon",
    platforms: [.iOS(.v13)],
    products: [.library(name: "Carillon", targets: ["Carillon"])],
    targets: [
        .target(name: "Carillon", resources: [.copy("PrivacyInfo.xcprivacy")]),
        .testTarget(name: "CarillonTests", dependencies: ["Carillon"]),
    ]
)

// What the conformance suite drives, and what the sample's app and extension share; no app needs it.
if Context.environment["CARILLON_CONFORMANCE"] != nil {
    package.targets += [
        .executableTarget(name: "Driver", dependencies: ["Carillon"], path: "Conformance/Driver"),
        .target(name: "SampleShared", dependencies: ["Carillon"], path: "Sample/Shared"),
        .testTarget(name: "SampleTests", dependencies: ["SampleShared"]),
    ]
}
