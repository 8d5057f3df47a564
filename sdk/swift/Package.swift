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

// What the conformance suite drives; no app needs it.
if Context.environment["CARILLON_CONFORMANCE"] != nil {
    package.targets.append(.executableTarget(name: "Driver", dependencies: ["Carillon"], path: "Conformance/Driver"))
}
