package dev.carillon.reactnative

import com.facebook.react.BaseReactPackage
import com.facebook.react.bridge.NativeModule
import com.facebook.react.bridge.ReactApplicationContext
import com.facebook.react.module.model.ReactModuleInfo
import com.facebook.react.module.model.ReactModuleInfoProvider

/** Makes the module known to React Native; autolinking adds it to the app. */
public class CarillonPackage : BaseReactPackage() {
    override fun getModule(name: String, reactContext: ReactApplicationContext): NativeModule? =
        if (name == NativeCarillonSpec.NAME) CarillonModule(reactContext) else null

    override fun getReactModuleInfoProvider(): ReactModuleInfoProvider = ReactModuleInfoProvider {
        val name = NativeCarillonSpec.NAME
        mapOf(name to ReactModuleInfo(name, CarillonModule::class.java.name, false, false, false, true))
    }
}
