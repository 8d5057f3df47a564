#import "RCTCarillon.h"

#import <UIKit/UIKit.h>
#import <UserNotifications/UserNotifications.h>

#if __has_include(<CarillonReactNative/CarillonReactNative-Swift.h>)
#import <CarillonReactNative/CarillonReactNative-Swift.h>
#else
#import "CarillonReactNative-Swift.h"
#endif

using Done = void (^)(NSString *_Nullable, NSString *_Nullable);

static Done settle(RCTPromiseResolveBlock resolve, RCTPromiseRejectBlock reject)
{
  return ^(NSString *code, NSString *message) {
    if (code == nil) {
      resolve(nil);
    } else {
      reject(code, message, nil);
    }
  };
}

@implementation RCTCarillon

RCT_EXPORT_MODULE(Carillon)

// UIKit and CarillonReact belong to the main thread.
- (dispatch_queue_t)methodQueue
{
  return dispatch_get_main_queue();
}

+ (BOOL)requiresMainQueueSetup
{
  return NO;
}

- (void)invalidate
{
  dispatch_async(dispatch_get_main_queue(), ^{
    [CarillonReact.shared leave];
  });
}

- (void)start:(NSString *)url
       appkey:(NSString *)appkey
      options:(NSDictionary *)options
      resolve:(RCTPromiseResolveBlock)resolve
       reject:(RCTPromiseRejectBlock)reject
{
  NSString *failed = [CarillonReact.shared start:url appkey:appkey options:options];
  settle(resolve, reject)(failed == nil ? nil : @"argument", failed);
}

- (void)stop:(RCTPromiseResolveBlock)resolve reject:(RCTPromiseRejectBlock)reject
{
  [CarillonReact.shared stop];
  resolve(nil);
}

- (void)listen
{
  __weak RCTCarillon *module = self;
  [CarillonReact.shared listen:^(NSString *event) {
    [module emitOnEvent:event];
  }];
}

- (void)handled:(double)eventId error:(NSString *_Nullable)error
{
  [CarillonReact.shared handled:(NSInteger)eventId error:error];
}

- (void)setAlias:(NSString *)alias
           proof:(NSString *_Nullable)proof
         resolve:(RCTPromiseResolveBlock)resolve
          reject:(RCTPromiseRejectBlock)reject
{
  [CarillonReact.shared setAlias:alias proof:proof done:settle(resolve, reject)];
}

- (void)clearAlias:(RCTPromiseResolveBlock)resolve reject:(RCTPromiseRejectBlock)reject
{
  [CarillonReact.shared clearAlias:settle(resolve, reject)];
}

- (void)addTags:(NSArray *)tags
          proof:(NSString *_Nullable)proof
        resolve:(RCTPromiseResolveBlock)resolve
         reject:(RCTPromiseRejectBlock)reject
{
  [CarillonReact.shared addTags:tags proof:proof done:settle(resolve, reject)];
}

- (void)removeTags:(NSArray *)tags resolve:(RCTPromiseResolveBlock)resolve reject:(RCTPromiseRejectBlock)reject
{
  [CarillonReact.shared removeTags:tags done:settle(resolve, reject)];
}

- (void)addStags:(NSArray *)stags
           proof:(NSString *_Nullable)proof
         resolve:(RCTPromiseResolveBlock)resolve
          reject:(RCTPromiseRejectBlock)reject
{
  [CarillonReact.shared addStags:stags proof:proof done:settle(resolve, reject)];
}

- (void)removeStags:(NSArray *)stags resolve:(RCTPromiseResolveBlock)resolve reject:(RCTPromiseRejectBlock)reject
{
  [CarillonReact.shared removeStags:stags done:settle(resolve, reject)];
}

- (void)setAttributes:(NSDictionary *)attributes
              resolve:(RCTPromiseResolveBlock)resolve
               reject:(RCTPromiseRejectBlock)reject
{
  [CarillonReact.shared setAttributes:attributes done:settle(resolve, reject)];
}

- (void)getDevice:(RCTPromiseResolveBlock)resolve reject:(RCTPromiseRejectBlock)reject
{
  [CarillonReact.shared
      getDevice:^(NSString *known) {
        resolve(known);
      }
      failed:^(NSString *code, NSString *message) {
        reject(code, message, nil);
      }];
}

// Channels of vendors are Android's: Apple's token is the address of an iPhone.
- (void)setAddress:(NSString *)channel address:(NSString *)address
{
}

- (void)clearAddress:(NSString *)channel
{
}

- (void)takeMessage:(NSDictionary *)data
              title:(NSString *_Nullable)title
            content:(NSString *_Nullable)content
            resolve:(RCTPromiseResolveBlock)resolve
             reject:(RCTPromiseRejectBlock)reject
{
  resolve(@NO);
}

- (void)report:(NSString *)event msgid:(double)msgid
{
  [CarillonReact.shared report:event msgid:(NSInteger)msgid];
}

- (void)activity:(NSString *)event
{
  [CarillonReact.shared activity:event];
}

- (void)setBadge:(double)count
{
  [CarillonReact.shared setBadge:(NSInteger)count];
}

- (void)requestPermission:(RCTPromiseResolveBlock)resolve reject:(RCTPromiseRejectBlock)reject
{
  [CarillonReact.shared requestPermission:^(BOOL isGranted) {
    resolve(@(isGranted));
  }];
}

- (std::shared_ptr<facebook::react::TurboModule>)getTurboModule:
    (const facebook::react::ObjCTurboModule::InitParams &)params
{
  return std::make_shared<facebook::react::NativeCarillonSpecJSI>(params);
}

@end
