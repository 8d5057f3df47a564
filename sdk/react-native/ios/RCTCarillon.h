#import <CarillonSpec/CarillonSpec.h>

/// The native module: hands each call of index.js over to CarillonReact.
@interface RCTCarillon : NativeCarillonSpecBase <NativeCarillonSpec>
@end
